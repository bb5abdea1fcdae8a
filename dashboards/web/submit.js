// Checks the spec of a new study while it is typed: after a short pause in typing the form is sent to /submit/preview, one request at a time, and the
// element #checked is replaced by the one in the response. Without scripts the button `Check` does the same.
"use strict";

const PAUSE_MS = 600;
const BUSY_MS = 5000;
const form = document.getElementById("new-study");
const spec = document.getElementById("spec");
const checked = document.getElementById("checked");
let timer = 0;
let asking = false;
let shown = null; // the text that #checked is about

function later(wait) {
  clearTimeout(timer);
  timer = setTimeout(check, wait);
}

async function check() {
  const text = spec.value;
  if (asking || text === shown || !text.trim()) return;
  asking = true;
  checked.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch("/submit/preview", { method: "POST", body: new URLSearchParams(new FormData(form)) });
    const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("checked");
    if (found) {
      checked.replaceChildren(...found.childNodes);
      shown = text;
    } else {
      say(answer.redirected ? "You are logged out: log in on another page, then continue here." : "The service could not check the spec.");
      if (answer.status === 429 || answer.status >= 500) later(BUSY_MS);
    }
  } catch {
    say("The service cannot be reached.");
    later(BUSY_MS);
  } finally {
    asking = false;
    checked.removeAttribute("aria-busy");
    if (spec.value !== text) later(PAUSE_MS); // it was changed meanwhile
  }
}

function say(text) {
  const line = document.createElement("p");
  line.className = "soft";
  line.textContent = text;
  checked.replaceChildren(line);
}

// Clicking the location of an error selects its line in the text.
checked.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-line]");
  if (!link) return;
  event.preventDefault();
  const lines = spec.value.split("\n");
  const start = lines.slice(0, link.dataset.line - 1).reduce((sum, line) => sum + line.length + 1, 0);
  const at = start + Number(link.dataset.column) - 1;
  spec.focus();
  spec.setSelectionRange(at, start + lines[link.dataset.line - 1].length);
  const height = spec.scrollHeight / lines.length;
  spec.scrollTop = Math.max(0, (link.dataset.line - 4) * height);
});

spec.addEventListener("input", () => later(PAUSE_MS));
later(0);
