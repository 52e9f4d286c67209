// Checks custom resources, a JSON list on standard input, against the schemas in npm packages; prints what is wrong.
//
// API servers prune keys that a schema does not have. Here such a key is one that validation never reads.
import { GRPCRoute } from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/GRPCRoute";
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject";

const MODELS = { GRPCRoute, ScaledObject };

/** Copies a value, and notes the path of each key in `unread` until it is read. */
function watch(value, path, unread) {
  if (typeof value !== "object" || value === null) return value;
  const copy = Array.isArray(value) ? [] : {};
  for (const [key, inside] of Object.entries(value)) {
    const place = `${path}.${key}`;
    const watched = watch(inside, place, unread);
    unread.add(place);
    const get = () => {
      unread.delete(place);
      return watched;
    };
    Object.defineProperty(copy, key, { enumerable: true, get });
  }
  return copy;
}

let text = "";
for await (const part of process.stdin) text += part;
for (const object of JSON.parse(text)) {
  const unread = new Set();
  try {
    MODELS[object.kind].prototype.validate.call(watch(object, object.kind, unread));
  } catch (error) {
    console.log(`${object.kind}: ${error.message}`);
    continue;
  }
  for (const place of unread) console.log(`${place} is no key of the schema`);
}
