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
};

document.addEventListener("DOMContentLoaded", () => strata.showTheme());
