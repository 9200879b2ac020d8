// Conversations in the browser's IndexedDB: {id, title, changed, revision, text}, where text is the JSON of all of it.
"use strict";

strata.store = {
  PART: 200000, // UTF-16 units sent to the server at once

  // The answer of a function below, or its error, in a form that survives the way to the server.
  async call(name, ...args) {
    try {
      const value = await strata.store[name](...args);
      return { value: value === undefined ? null : value };
    } catch (error) {
      return { error: String(error?.message || error) };
    }
  },

  open() {
    strata.store.opening ??= new Promise((resolve, reject) => {
      const request = indexedDB.open("strata", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    return strata.store.opening;
  },

  async request(mode, action) {
    const store = (await strata.store.open()).transaction("conversations", mode).objectStore("conversations");
    const request = action(store);
    return new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
  },

  // The `most` that were changed last of those with all words of the query.
  async list(query, most) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const all = await strata.store.request("readonly", (store) => store.getAll());
    const found = words.length ? all.filter((record) => strata.store.matches(record, words)) : all;
    found.sort((a, b) => b.changed - a.changed);
    return found.slice(0, most).map(({ id, title }) => ({ id, title }));
  },

  matches(record, words) {
    const text = [record.title, ...strata.store.said(record)].join("\n").toLowerCase();
    return words.every((word) => text.includes(word));
  },

  said(record) {
    try {
      return JSON.parse(record.text).entries.map((entry) => entry.content);
    } catch { // one that cannot be read must not hide the others
      return [];
    }
  },

  async part(id, start) {
    const record = await strata.store.request("readonly", (store) => store.get(id));
    if (!record) return "";
    const end = start + strata.store.PART;
    const splits = /[\ud800-\udbff]/.test(record.text.charAt(end - 1)); // a character of two units
    return record.text.slice(start, splits ? end + 1 : end);
  },

  // A window that slept may be late with what it was to keep: the newest state stays.
  async put(id, title, changed, revision, text) {
    const transaction = (await strata.store.open()).transaction("conversations", "readwrite");
    const store = transaction.objectStore("conversations");
    return new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error);
      store.get(id).onsuccess = (event) => {
        const kept = event.target.result;
        if (!(kept?.revision > revision)) store.put({ id, title, changed, revision, text });
      };
    });
  },

  remove(id) {
    return strata.store.request("readwrite", (store) => store.delete(id));
  },

  settings() {
    return JSON.parse(localStorage.getItem("strata.settings") || "{}");
  },

  keepSettings(settings) {
    localStorage.setItem("strata.settings", JSON.stringify(settings));
  },
};
