// The page Chat: the field for messages, and a view that stays at the end of a growing answer.
"use strict";

Object.assign(strata, {
  MOST: 900000, // characters of a message; a page may send a million bytes at once

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
      const elsewhere = document.querySelector(".q-dialog, .q-menu") ||
        event.target.closest?.(".strata-editing, .strata-call, .q-drawer");
      if (event.key === "Escape" && !elsewhere && strata.answering()) emitEvent("strata_stop");
    });
    strata.composerFill(sessionStorage.getItem("strata.draft") || "");
  },

  answering() {
    return !document.querySelector(".strata-stop").classList.contains("hidden");
  },

  // The address names the conversation, so that a reload finds it.
  opened(id) {
    history.replaceState(null, "", `?c=${encodeURIComponent(id)}`);
  },

  async copyMessage(text) {
    await strata.copy(text);
    Quasar.Notify.create({ message: "Copied", timeout: 1200, position: "bottom" });
  },

  closeDrawer(id) {
    if (window.innerWidth < 1024) getElement(id).hide();
  },

  composer() {
    return document.querySelector(".strata-input");
  },

  composerFill(text) {
    strata.composer().value = text;
    strata.composerInput();
  },

  composerInput() {
    const field = strata.composer();
    sessionStorage.setItem("strata.draft", field.value);
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight, window.innerHeight * 0.4)}px`;
  },

  composerKey(event, emit) {
    // A phone's keyboard has no Shift+Enter.
    const phone = matchMedia("(pointer: coarse)").matches;
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !phone) {
      event.preventDefault();
      strata.composerSend(emit);
    }
  },

  composerSend(emit) {
    const text = strata.composer().value;
    if (!text.trim() || strata.answering()) return;
    if (text.length > strata.MOST) {
      Quasar.Notify.create({ type: "negative", message: `A message may have ${strata.MOST} characters` });
      return;
    }
    emit(text);
    strata.composerFill("");
    strata.composer().focus();
  },
});
