// Asks for an answer of a form with the AI SDK, once by each provider. Any model does: the form is forced.
import {createAnthropic} from '@ai-sdk/anthropic'
import {createOpenAI} from '@ai-sdk/openai'
import {createOpenAICompatible} from '@ai-sdk/openai-compatible'
import {generateObject} from 'ai'
import {z} from 'zod'

const {BASE, MODEL} = process.env
const baseURL = BASE + '/v1', apiKey = 'any'
const schema = z.object({name: z.string().max(40), born: z.number().int().min(0).max(2100), city: z.string().max(40).nullable()})
const failed = []
for (const [name, model] of Object.entries({
	compatible: createOpenAICompatible({name: 'local', baseURL, apiKey, supportsStructuredOutputs: true}).chatModel(MODEL),
	'compatible, without a schema': createOpenAICompatible({name: 'local', baseURL, apiKey}).chatModel(MODEL),
	responses: createOpenAI({baseURL, apiKey}).responses(MODEL),
	chat: createOpenAI({baseURL, apiKey}).chat(MODEL),
	anthropic: createAnthropic({baseURL, apiKey}).messages(MODEL),
})) {
	try {
		const {object} = await generateObject({model, schema, prompt: 'Ada Lovelace was born in London in 1815. Who is she, as data?', maxRetries: 0, maxOutputTokens: 200})
		console.log(name + ':', JSON.stringify(object))
	} catch (e) {
		console.log(name + ':', e.message, JSON.stringify(e.text ?? e.responseBody ?? ''))
		if (name != 'compatible, without a schema') failed.push(name) // json_object forces an object, and no more
	}
}
if (failed.length) {
	console.error('failed: ' + failed.join(', '))
	process.exit(1)
}
