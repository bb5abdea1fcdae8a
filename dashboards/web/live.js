// Updates a page without reloading it. Controlled by attributes of <main>:
//   data-events="URL"    a stream of server-sent events: the page is fetched again after each event
//   data-every="SECONDS" the page is fetched again after this time
// Only the contents of <main> are replaced; open details, focus and scroll position are kept. Without scripts the page reloads itself.
"use strict";

const RETRY_MS = 3000;
const GATHER_MS = 300; // events that come close together need one fetch
const REST = 5; // a page that takes long to make is asked for less often: at most a sixth of the time goes into it
const STEPS_MS = 2000; // steps of running trials are no events: their part of the page is fetched again after so long
const LATE = ["results", "figures"]; // in the order in which they are fetched: the first holds the second
const CONTROLS = "a[href], button, summary, [tabindex]";
let refreshing = Promise.resolve(); // one after the other, or an old page could come after a new one
let pending = false;
let pause = 0;

// The <details> elements by a stable key, as new ones may appear between them.
function detailsOf(main) {
  const name = (part) => `${part.closest("[id]")?.id} ${part.querySelector("summary")?.textContent.replace(/\d+/g, "")}`;
  return new Map([...main.querySelectorAll("details")].map((part) => [name(part), part]));
}

// Key that identifies a control after an update: its position, type, and target or text.
function nameOf(control) {
  const label = control.getAttribute("aria-label") ?? control.textContent.replace(/\d+/g, "");
  return [control.closest("[id]")?.id, control.tagName, control.name, control.getAttribute("href") ?? control.value, label].join(" ");
}

// Replaces the contents of a part of the page; keeps open details and the focus.
function fill(part, contents) {
  const focus = part.contains(document.activeElement) ? document.activeElement : null;
  const name = focus && nameOf(focus);
  const before = detailsOf(part);
  keepLate(part, contents);
  part.replaceChildren(...contents.childNodes);
  detailsOf(part).forEach((one, name) => (one.open = before.get(name)?.open ?? one.open));
  if (focus) [...part.querySelectorAll(CONTROLS)].find((control) => nameOf(control) === name)?.focus({ preventScroll: true });
}

// Fetches a page of this service; null if it does not exist or is not allowed, throws if a retry may succeed.
async function pageAt(url) {
  const response = await fetch(url, { headers: { Accept: "text/html" } });
  if (response.status >= 500 || response.status === 429) throw new Error(response.statusText);
  if (!response.ok || response.redirected) return null;
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

async function refresh() {
  pending = false;
  if (typing(document.querySelector("main"))) return refreshSoon(RETRY_MS);
  const began = performance.now();
  const found = await pageAt(location.href);
  if (!found) return;
  const [old, next] = [document.querySelector("main"), found.querySelector("main")];
  if (typing(old)) return refreshSoon(RETRY_MS);
  fill(old, next);
  document.title = found.title;
  pause = REST * (performance.now() - began);
  await fetchLate();
}

// Whether the user is filling in a form, which must not be replaced.
function typing(main) {
  const at = document.activeElement;
  return main.contains(at) && ["INPUT", "SELECT", "TEXTAREA"].includes(at.tagName);
}

function refreshSoon(wait = GATHER_MS) {
  if (pending) return;
  pending = true;
  const rest = new Promise((done) => setTimeout(done, Math.max(wait, pause)));
  refreshing = Promise.all([refreshing, rest]).then(refresh).catch(() => refreshSoon(RETRY_MS));
}

async function follow(url) {
  let after = "";
  for (;;) {
    try {
      const response = await fetch(url, { headers: { Accept: "text/event-stream", "Last-Event-ID": after } });
      if (!response.ok) throw new Error(response.statusText);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
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

// Parts computed from all trials of a large study are loaded after the page, each from its own URL. The old part stays until the new one has arrived.
function keepLate(old, next) {
  for (const id of LATE) {
    const [before, after] = [old, next].map((part) => part.querySelector(`#${id}`));
    if (after?.dataset.from && before && !before.querySelector(":scope > .waiting")) after.replaceChildren(...before.childNodes);
  }
}

async function fetchLate() {
  for (const id of LATE) {
    const part = document.querySelector(`#${id}[data-from]`);
    if (!part) continue;
    const began = performance.now();
    const found = await pageAt(part.dataset.from).catch(() => refreshSoon(RETRY_MS));
    const now = document.querySelector(`#${id}[data-from]`);
    if (!now) continue;
    if (typing(now)) {
      refreshSoon(RETRY_MS);
      continue;
    }
    const waiting = now.querySelector(":scope > .waiting");
    if (!found) {
      if (waiting) waiting.textContent = "This part of the page could not be loaded. Reload the page.";
      continue;
    }
    fill(now, found.body);
    if (waiting && location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
    pause += REST * (performance.now() - began);
  }
}

// Updates the part of the page with the running trials.
async function followSteps() {
  const part = document.querySelector("#running[data-from]");
  if (!part?.querySelector("li") || part.contains(document.activeElement)) return;
  const found = await pageAt(part.dataset.from);
  const now = document.querySelector("#running[data-from]");
  if (found && now) fill(now, found.body);
}

fetchLate();
const { events, every } = document.querySelector("main").dataset;
if (events) follow(events);
if (events) setInterval(() => followSteps().catch(() => {}), STEPS_MS);
if (every) setInterval(() => refreshSoon(), 1000 * Number(every));
