// Calls of the official TypeScript SDK: a JSON object a line comes in, another goes out. See `Sdk` in conftest.py.
import readline from "node:readline";
import Anthropic, { toFile } from "@anthropic-ai/sdk";

const argument = async (value) => {
  if (!value?.$file) return value;
  const [name, content, type] = value.$file;
  return toFile(Buffer.from(content, "base64"), name, { type });
};

const camel = (name) => name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());

const call = async ({ url, key, path, arguments: given, named }) => {
  const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0, timeout: 120_000 });
  const names = path.split(".").map(camel);
  const last = names.pop();
  const resource = names.reduce((object, name) => object[name], client);
  const options = {};
  for (const [name, value] of Object.entries(named)) options[name] = await argument(value);
  const args = await Promise.all(given.map(argument));
  if (Object.keys(options).length > 0) args.push(options);
  const made = resource[last](...args);
  if (last === "stream") return { value: await made.finalMessage() };
  if (last === "list") {
    const all = [];
    for await (const item of made) all.push(item);
    return { value: all };
  }
  const value = await made;
  return value instanceof Response ? { bytes: Buffer.from(await value.arrayBuffer()).toString("base64") } : { value };
};

const failed = (error) => ({
  error: { name: error.constructor.name, message: error.message, status: error.status ?? null, body: error.error ?? null },
});

for await (const line of readline.createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await call(JSON.parse(line)).catch(failed)));
}
