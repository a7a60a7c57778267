// A browser starts no worker for a page that was opened from a folder, and the search of the theme is one.
// Here a hidden frame stands in for it; from a server nothing changes.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source !== this.inside) return;
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      const answer = "window.postMessage = (data) => parent.dispatchEvent(new MessageEvent('message', { data, source: window }));";
      const load = `window.importScripts = (...all) => all.reduce((before, src) => before.then(() => new Promise((done) => {
        const script = Object.assign(document.createElement("script"), { src, onload: done });
        document.body.append(script);
      })), Promise.resolve());`;
      this.ready = new Promise((done) => frame.addEventListener("load", done, { once: true }));
      const page = this.inside.document;
      page.open();
      page.write(`<body><script>${answer}${load}<\/script><script src="${address}"><\/script></body>`);
      page.close();
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {}
  };
}
