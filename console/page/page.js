// Keeps the page as the server would show it now, while somebody looks at it; and releases locks.
// The server writes all of the HTML: this only puts its next version into the place of the present one.

const interval = 1500 // milliseconds between a response and the next request
const patience = 6000 // after which the process counts as silent
const points = 80     // of the charts: two minutes

const live = document.getElementById('live')
const silence = document.getElementById('silence')
const result = document.getElementById('result')
const history = { held: [], waiting: [] }

document.documentElement.classList.add('js')

function say(state) {
	if (live.textContent !== state) live.textContent = state
}

// morph makes an element like its next version, and keeps what is equal: the focus, a selection, the place that was scrolled to.
function morph(now, next) {
	if (now.isEqualNode(next)) return
	if (now.nodeType !== next.nodeType || now.nodeName !== next.nodeName) {
		now.replaceWith(next)
	} else if (now.nodeType !== Node.ELEMENT_NODE) {
		now.data = next.data
	} else {
		for (const { name } of [...now.attributes]) if (!next.hasAttribute(name)) now.removeAttribute(name)
		for (const { name, value } of next.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value)
		if (!now.dataset.keep) morphChildren(now, next)
	}
}

// morphChildren finds the rows of tables by their data-row, and all other children by their place.
function morphChildren(now, next) {
	const rows = new Map()
	for (const row of now.children) if (row.dataset.row !== undefined) rows.set(row.dataset.row, row)
	let at = now.firstChild
	for (const child of [...next.childNodes]) {
		const name = child.dataset?.row
		const old = name === undefined ? at : rows.get(name)
		rows.delete(name)
		if (!old || (name === undefined && old.dataset?.row !== undefined)) {
			now.insertBefore(child, at)
		} else {
			if (old === at) at = at.nextSibling
			else now.insertBefore(old, at)
			morph(old, child)
		}
	}
	while (at) {
		const gone = at
		at = at.nextSibling
		gone.remove()
	}
}

function draw(name, value) {
	const values = history[name]
	values.push(value)
	if (values.length > points) values.shift()
	const chart = document.querySelector(`[data-keep=${name}]`)
	if (!chart || values.length < 2) return
	const namespace = 'http://www.w3.org/2000/svg'
	let svg = chart.firstElementChild
	if (!svg) {
		svg = document.createElementNS(namespace, 'svg')
		svg.setAttribute('viewBox', `0 0 ${points - 1} 20`)
		svg.setAttribute('preserveAspectRatio', 'none')
		svg.setAttribute('aria-hidden', 'true')
		svg.append(document.createElementNS(namespace, 'path'))
		chart.append(svg)
	}
	const top = Math.max(1, ...values)
	const step = (v, i) => `${i},${(19 - 18 * v / top).toFixed(1)}`
	svg.firstElementChild.setAttribute('d', 'M' + values.map(step).join('L'))
}

function show(page) {
	const next = page.getElementById('main')
	document.title = page.title
	morph(document.querySelector('link[rel=icon]'), page.querySelector('link[rel=icon]'))
	morph(document.querySelector('.name'), page.querySelector('.name'))
	morph(document.getElementById('time'), page.getElementById('time'))
	morph(document.getElementById('main'), next)
	draw('held', Number(next.dataset.held))
	draw('waiting', Number(next.dataset.waiting))
}

let timer, request

async function update() {
	clearTimeout(timer)
	request?.abort()
	const mine = request = new AbortController()
	const deadline = setTimeout(() => mine.abort(), patience)
	try {
		const response = await fetch(location.href, { signal: mine.signal, cache: 'no-store' })
		if (!response.ok) throw new Error(`status ${response.status}`)
		const page = new DOMParser().parseFromString(await response.text(), 'text/html')
		if (mine !== request) return
		show(page)
		document.documentElement.classList.remove('stale')
		silence.replaceChildren()
		say('Live')
	} catch {
		if (mine !== request) return
		document.documentElement.classList.add('stale')
		document.title = '✕ No response – redlock'
		if (!silence.firstChild) silence.textContent = `The process doesn't answer. Below is what it said at ${document.getElementById('time').textContent}.`
		say('Last response')
	} finally {
		clearTimeout(deadline)
	}
	if (document.visibilityState === 'visible') timer = setTimeout(update, interval)
}

function pause() {
	clearTimeout(timer)
	request?.abort()
	request = undefined
	say('Paused')
}

document.addEventListener('visibilitychange', () => document.visibilityState === 'visible' ? update() : pause())

const confirm = document.getElementById('confirm')
let wanted // the button whose lock is to be released

document.addEventListener('click', (event) => {
	const button = event.target.closest('button.release')
	if (!button) return
	wanted = { ...button.dataset }
	document.getElementById('confirm-key').textContent = wanted.key
	document.getElementById('confirm-fence').textContent = wanted.fence
	confirm.returnValue = ''
	confirm.showModal()
})

confirm.addEventListener('close', async () => {
	const release = wanted
	if (confirm.returnValue !== 'release' || !release) return
	wanted = undefined // the event of an earlier close may come late, and see this one's value
	try {
		const response = await fetch(release.release, { method: 'DELETE' })
		const result = await response.json()
		tell(response.ok ? `Released: ${release.key}` : `Not released: ${release.key}. ${result.title ?? result.error}. ${result.detail ?? ''}`)
	} catch {
		tell(`No response. Whether ${release.key} was released, the list will show.`)
	}
	update()
})

let told

function tell(text) {
	clearTimeout(told)
	const line = document.createElement('span')
	line.textContent = text
	result.replaceChildren(line)
	told = setTimeout(() => result.replaceChildren(), 15000)
}

if (document.visibilityState === 'visible') update()
else pause()
