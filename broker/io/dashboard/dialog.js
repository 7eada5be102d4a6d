// Questions and texts in front of the page.
import { button, element } from "/dashboard/parts.js";

const dialog = document.getElementById("dialog");

// Returns whether `act`, what may be done about it, was chosen.
export async function tell(title, parts, act = "") {
  const acts = act ? [button(act, () => dialog.close("yes"), "danger"), " "] : [];
  dialog.replaceChildren(element("h2", {}, title), ...parts, ...acts, button("Close", () => dialog.close(), "", { autofocus: "" }));
  return (await open()) === "yes";
}

export async function confirmed(question, act = "Yes") {
  dialog.replaceChildren(element("p", {}, question), button(act, () => dialog.close("yes"), "danger"), " ", button("No", () => dialog.close("no"), "", { autofocus: "" }));
  return (await open()) === "yes";
}

function open() {
  dialog.returnValue = "";
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
    dialog.showModal();
  });
}
