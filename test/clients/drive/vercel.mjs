import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { generateText, stepCountIs, streamText, tool } from 'ai'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { z } from 'zod'

const { BASE, MODEL } = process.env
const baseURL = BASE + '/v1', apiKey = 'any', failed = []
const openai = createOpenAI({ baseURL, apiKey })
const models = {
  'openai-compatible': createOpenAICompatible({ name: 'local', baseURL, apiKey, includeUsage: true })(MODEL),
  'openai chat': openai.chat(MODEL),
  'openai responses': openai.responses(MODEL),
  anthropic: createAnthropic({ baseURL, apiKey })(MODEL),
}
const tools = {
  read_file: tool({
    description: 'Reads a file.',
    inputSchema: z.object({ path: z.string(), lines: z.number().nullable().optional() }),
    execute: async ({ path }) => { writeFileSync('ran', path); return readFileSync(path, 'utf8') },
  }),
}
for (const [name, model] of Object.entries(models)) {
  for (const streamed of [false, true]) {
    if (existsSync('ran')) rmSync('ran')
    const ask = {
      model, tools, system: 'Be brief.', prompt: 'Read the file hello.txt and say what it says.', stopWhen: stepCountIs(5), maxRetries: 0,
      providerOptions: { openai: { store: false } }, // else it refers to items that the server would have to keep
    }
    let text
    try {
      if (streamed) {
        const r = streamText({ ...ask, onError() {} })
        await r.consumeStream()
        text = await r.text
      } else text = (await generateText(ask)).text
    } catch (e) { text = String(e) + ' ' + (e.responseBody ?? '') + (e.cause ?? '') }
    const title = name + (streamed ? ' streamed' : '')
    console.log(title + ':', existsSync('ran') ? 'tool ran,' : 'tool did not run,', text)
    if (!text.includes('The file says forty-two.') || !existsSync('ran')) failed.push(title)
  }
}
if (failed.length) { console.error('failed: ' + failed.join(', ')); process.exit(1) }
