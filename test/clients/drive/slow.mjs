// Reads streams whose prompts take long to read, with OpenAI's library.
import OpenAI from 'openai'

const { BASE, MODEL, SAYS, SECONDS, PHRASES } = process.env
const o = new OpenAI({ baseURL: BASE + '/v1', apiKey: 'any', maxRetries: 0, timeout: 600_000 })
const failed = []
const readers = {
  async *'node chat'(content) {
    const s = o.chat.completions.stream({ model: MODEL, messages: [{ role: 'user', content }] })
    for await (const c of s) yield c.choices[0]?.delta.content
    if (await s.finalContent() !== SAYS) throw new Error('the last answer differs')
  },
  async *'node responses'(input) {
    const s = o.responses.stream({ model: MODEL, input, store: false })
    let at = 0
    for await (const e of s) {
      if (e.sequence_number !== at++) throw new Error(`event ${at - 1} has number ${e.sequence_number}`)
      if (e.type === 'response.output_text.delta') yield e.delta
    }
    if ((await s.finalResponse()).output_text !== SAYS) throw new Error('the last answer differs')
  },
}
for (const [name, read] of Object.entries(readers)) {
  const text = Array.from({ length: PHRASES }, (_, i) => `${name} ${i} of ${PHRASES}.`).join(' ')
  const began = Date.now()
  let first = 0, said = ''
  try {
    for await (const piece of read(text)) {
      said += piece ?? ''
      first ||= said && (Date.now() - began) / 1000
    }
  } catch (e) { console.error(e) }
  console.log(`${name}: ${first} s to the first text, ${said}`)
  if (said !== SAYS || first < SECONDS) failed.push(name)
}
if (failed.length) { console.error('failed: ' + failed.join(', ')); process.exit(1) }
