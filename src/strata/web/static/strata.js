// What the browser does by itself, on every page.
"use strict";

const strata = {
  themes: {
    auto: { icon: "brightness_auto", label: "Theme: as the system" },
    light: { icon: "light_mode", label: "Theme: light" },
    dark: { icon: "dark_mode", label: "Theme: dark" },
  },

  theme() {
    const saved = localStorage.getItem("strata.theme");
    return saved in strata.themes ? saved : "auto";
  },

  nextTheme() {
    const names = Object.keys(strata.themes);
    localStorage.setItem("strata.theme", names[(names.indexOf(strata.theme()) + 1) % names.length]);
    strata.showTheme();
  },

  showTheme() {
    const name = strata.theme();
    setDark(name === "auto" ? null : name === "dark"); // NiceGUI's
    for (const button of document.querySelectorAll(".strata-theme")) {
      button.setAttribute("aria-label", strata.themes[name].label);
      button.title = strata.themes[name].label;
      button.querySelector(".q-icon").textContent = strata.themes[name].icon;
    }
  },

  async copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // no permission, or a page that came over plain http from another machine
      const field = Object.assign(document.createElement("textarea"), { value: text });
      const focused = document.activeElement;
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
      focused?.focus();
    }
  },

  async copyAndTell(text) {
    await strata.copy(text);
    Quasar.Notify.create({ message: "Copied", timeout: 1200, position: "bottom" });
  },
};

document.addEventListener("DOMContentLoaded", () => strata.showTheme());

document.addEventListener("click", async (event) => {
  const link = event.target.closest(".strata-text a[href]");
  if (link) { // a conversation must not be lost to a link, nor the site told where one came from
    event.preventDefault();
    if (link.getAttribute("href")) window.open(link.href, "_blank", "noopener,noreferrer");
  }
  const button = event.target.closest(".strata-copy");
  if (button) {
    await strata.copy(button.closest(".strata-code").querySelector("pre").textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
});
