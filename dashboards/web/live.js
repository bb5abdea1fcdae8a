// Keeps a page current without reloading it. Two attributes of <main> say how:
//   data-events="URL"    a stream of server-sent events: the page is fetched again when something has happened
//   data-every="SECONDS" no stream: it is fetched again after so long
// Only the contents of <main> are replaced; open details, the focus and the place on the page stay. Without scripts the page reloads itself.
"use strict";

const RETRY_MS = 3000;
const GATHER_MS = 300; // events that come close together need one fetch
let pending = 0;

function openDetails(main) {
  return [...main.querySelectorAll("details")].map((part) => part.open);
}

async function refresh() {
  pending = 0;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok || answer.redirected) return;
  const found = new DOMParser().parseFromString(await answer.text(), "text/html");
  const [old, next] = [document.querySelector("main"), found.querySelector("main")];
  if (typing(old)) return;
  const focus = old.contains(document.activeElement) ? document.activeElement : null;
  const open = openDetails(old);
  old.replaceChildren(...next.childNodes);
  old.querySelectorAll("details").forEach((part, index) => (part.open = open[index] ?? part.open));
  if (focus && focus.name) old.querySelector(`[name="${focus.name}"][value="${focus.value}"]`)?.focus();
  document.title = found.title;
}

// Whether someone is filling in a form of the page, which must not be taken away.
function typing(main) {
  const at = document.activeElement;
  return main.contains(at) && ["INPUT", "SELECT", "TEXTAREA"].includes(at.tagName);
}

function refreshSoon() {
  if (!pending) pending = setTimeout(() => refresh().catch(() => {}), GATHER_MS);
}

async function follow(url) {
  let after = "";
  for (;;) {
    try {
      const answer = await fetch(url, { headers: { Accept: "text/event-stream", "Last-Event-ID": after } });
      if (!answer.ok) throw new Error(answer.statusText);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const lines = (rest + part.value).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          if (line.startsWith("id: ")) after = line.slice(4);
          if (line.startsWith("event: ")) refreshSoon();
          if (line === "event: end") return;
        }
      }
    } catch {
      refreshSoon(); // the stream is refused or broken: look, and try again
    }
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

const { events, every } = document.querySelector("main").dataset;
if (events) follow(events);
if (every) setInterval(refreshSoon, 1000 * Number(every));
