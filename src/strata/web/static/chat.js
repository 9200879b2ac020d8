// The page Chat: the field for messages, and a view that stays at the end of a growing answer.
"use strict";

Object.assign(strata, {
  MOST: 990000, // characters of a text on its way; a page may send a million at once

  chatReady() {
    const scroll = document.querySelector(".strata-scroll");
    let atEnd = true, top = 0;
    strata.toEnd = () => {
      atEnd = true;
      scroll.scrollTop = scroll.scrollHeight;
    };
    scroll.addEventListener("scroll", () => {
      // A text that has grown since is no sign that the person wants to see what is above; moving up is.
      const left = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight;
      atEnd = left < 50 || (atEnd && scroll.scrollTop >= top);
      top = scroll.scrollTop;
    });
    const observer = new ResizeObserver(() => atEnd && strata.toEnd());
    observer.observe(scroll);
    observer.observe(scroll.firstElementChild);
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      const backdrop = [...document.querySelectorAll(".q-drawer__backdrop")].find((element) => element.checkVisibility());
      const elsewhere = document.querySelector(".q-dialog, .q-menu") ||
        event.target.closest?.(".strata-editing, .strata-call, .q-drawer");
      if (backdrop && !document.querySelector(".q-dialog, .q-menu")) backdrop.click(); // closes its drawer
      else if (!elsewhere && strata.answering()) emitEvent("strata_stop");
    });
    for (const kind of ["paste", "drop"]) document.addEventListener(kind, strata.refuseFiles);
    document.addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
    for (const content of document.querySelectorAll(".q-drawer__content[aria-label]")) {
      content.closest("aside").setAttribute("aria-label", content.getAttribute("aria-label")); // Quasar does not
    }
    window.addEventListener("popstate", () => emitEvent("strata_went", strata.named()));
    window.addEventListener("focus", () => emitEvent("strata_focus"));
    window.socket.on("disconnect", () => strata.stopSending());
    strata.composerFill(sessionStorage.getItem("strata.draft") || "");
  },

  answering() {
    return !document.querySelector(".strata-stop").classList.contains("hidden");
  },

  // The address names the conversation, so that a reload finds it, and "back" the one before.
  opened(id) {
    const before = strata.named(), address = `?c=${encodeURIComponent(id)}`;
    if (before === null) history.replaceState(null, "", address);
    else if (before !== id) history.pushState(null, "", address);
  },

  named() {
    return new URLSearchParams(location.search).get("c");
  },

  closeDrawer(id) {
    if (window.innerWidth < 1024) getElement(id).hide();
  },

  // --- fields for text ---

  // As high as its text, and running as its first letters do; `dir=auto` takes seconds for a long text.
  fit(field) {
    const letter = field.value.slice(0, 1000).match(/\p{L}/u)?.[0] ?? "";
    field.dir = /\p{Script=Hebrew}|\p{Script=Arabic}|\p{Script=Syriac}|\p{Script=Thaana}/u.test(letter) ? "rtl" : "ltr";
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight, window.innerHeight * 0.4)}px`;
  },

  // Whether a key sends what is typed. A phone's keyboard has no Shift+Enter, so there only buttons send.
  sends(event) {
    const phone = matchMedia("(pointer: coarse)").matches;
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || phone) return false;
    event.preventDefault();
    return true;
  },

  // Gives a text to `emit`, or tells why it cannot be sent; it stays where it was typed in any case.
  send(text, emit) {
    const size = JSON.stringify(JSON.stringify(text)).length; // as it travels
    if (!window.socket.connected) {
      strata.warn("The server cannot be reached. What you typed stays here.");
    } else if (size > strata.MOST) {
      const most = Math.floor((text.length * strata.MOST) / size);
      strata.warn(`This text has ${text.length} characters; at most ${most} of them can be sent at once.`);
    } else {
      emit(text.toWellFormed?.() ?? text); // half a character cannot travel
      return true;
    }
    return false;
  },

  sendField(id, emit) {
    strata.send(document.getElementById(id).value, emit);
  },

  edit(id, text) {
    const field = document.getElementById(id);
    field.dataset.before = text;
    field.value ||= text; // a person may be faster
    strata.fit(field);
    field.focus();
  },

  // What is typed into parts of the conversation that are about to go.
  keepTyped(ids) {
    const fields = ids.flatMap((id) => [...(document.getElementById(id)?.querySelectorAll("textarea") ?? [])]);
    const texts = fields.filter((field) => field.value !== (field.dataset.before ?? "")).map((field) => field.value);
    if (texts.length) strata.composerFill([strata.composer().value, ...texts].filter(Boolean).join("\n\n"));
    return texts.length > 0;
  },

  // Left alone, a file that is dropped takes the place of the page, and a pasted picture vanishes.
  refuseFiles(event) {
    const data = event.clipboardData ?? event.dataTransfer;
    if (!data?.files.length || (event.type === "paste" && data.types.includes("text/plain"))) return;
    event.preventDefault();
    strata.warn("Pictures and files cannot be sent. Text can be pasted.");
  },

  warn(message) {
    Quasar.Notify.create({ type: "negative", message });
  },

  // --- the field for messages ---

  composer() {
    return document.querySelector(".strata-composer textarea");
  },

  composerFill(text) {
    strata.composer().value = text;
    strata.composerInput();
  },

  composerInput() {
    const field = strata.composer();
    try {
      sessionStorage.setItem("strata.draft", field.value);
    } catch { // millions of characters: a reload would lose them
      sessionStorage.removeItem("strata.draft");
    }
    strata.fit(field);
  },

  composerSend(emit) {
    const text = strata.composer().value;
    if (!text.trim() || strata.answering() || strata.isSending) return;
    if (!strata.send(text, emit)) return;
    strata.sent = text;
    strata.isSending = true;
    strata.patience = setTimeout(() => strata.warn("The server has not taken your message yet."), 5000);
  },

  // The server has the message, or cannot take it now. Until then, and if it never says, the text stays.
  composerTaken(taken) {
    const text = strata.composer().value;
    if (taken && text.startsWith(strata.sent)) strata.composerFill(text.slice(strata.sent.length));
    strata.stopSending();
  },

  stopSending() {
    strata.isSending = false;
    clearTimeout(strata.patience);
  },

  showEnd() {
    strata.toEnd();
    strata.focusComposer();
  },

  enterDrawer(selector) {
    const drawer = document.querySelector(selector);
    if (!drawer.contains(document.activeElement)) drawer.querySelector("button").focus(); // a person may be faster
  },

  leaveDrawer(selector) {
    const focused = document.activeElement;
    if (document.querySelector(selector).contains(focused)) focused.blur(); // it is hidden a moment later
    strata.focusComposer();
  },

  // Back to the field when what had the focus is gone; on a phone that would bring up the keyboard.
  focusComposer() {
    const isFree = !document.activeElement?.offsetParent; // the body, or hidden
    if (isFree && !matchMedia("(pointer: coarse)").matches) strata.composer().focus();
  },
});
