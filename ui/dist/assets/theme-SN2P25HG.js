try{let t=localStorage.getItem("theme");(t==="light"||t==="dark")&&(document.documentElement.dataset.theme=t)}catch{}
