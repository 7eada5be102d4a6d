// Questions and texts in front of the page.
import { ask } from "/dashboard/api.js";
import { button, element, pieces } from "/dashboard/parts.js";

const dialog = document.getElementById("dialog");

// Returns whether `act`, what may be done about it, was chosen; `close`: the other choice.
export function tell(title, parts, act = "", close = "Close") {
  const acts = act ? [button(act, () => dialog.close("yes"), "danger"), " "] : [];
  dialog.replaceChildren(element("h2", {}, pieces(title)), ...parts, ...acts, button(close, () => dialog.close(), "", { autofocus: "" }));
  dialog.returnValue = "";
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
    dialog.showModal();
  });
}

// Has something done if that is confirmed. Returns false, or the answer or the error.
export async function change(question, act, path, method, at) {
  return (await tell(question, [], act, "No")) && ask(path, method, { at }).catch(async (error) => {
    await tell("Refused", [element("p", {}, error.message)]);
    return error;
  });
}
