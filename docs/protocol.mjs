#!/usr/bin/env node
// The dirqueue protocol for Node 20, written from protocol.md alone, without packages. For local filesystems only.
//   import { Queue } from "./protocol.mjs"
//   const queue = new Queue("spool"), lease = queue.get()      // null if there is nothing
//   try { work(lease.body); lease.ack() } catch (error) { lease.retry(String(error)) }
// or as a program; the body is standard input:
//   protocol.mjs put QUEUE [link=1] [delay=S] [priority=N]      prints the id
//   protocol.mjs get QUEUE [lease=S]                            prints a handle
//   protocol.mjs body | ack | release QUEUE HANDLE              body prints the body
//   protocol.mjs renew QUEUE HANDLE [lease=S]                   prints the new handle
//   protocol.mjs retry | reject QUEUE HANDLE [error=TEXT]
// Status: 0 done, 1 refused or failed, 2 usage, 3 nothing there, 4 the lease was lost. Left out, as the page allows:
// writing slices and batches, max_messages, cancel, change, redrive, waiting, the ballast, purging.
import { execFileSync } from "node:child_process"
import { randomBytes, randomInt } from "node:crypto"
import * as fs from "node:fs"
import { hostname } from "node:os"
import { dirname } from "node:path"
import { pathToFileURL } from "node:url"

const DEFAULTS = {
  format: 1, layout: "auto", sync: true, priorities: false, default_priority: 5, max_messages: 0, max_size: 0,
  lease: 30, margin: 1, max_attempts: 5, backoff: 1, max_backoff: 300, order: "fifo", keep_done: false,
  keep_done_for: 604800, keep_dead_for: 0, keep_expired: true, stale: 3600, links: false, schema: null, granularity: 60, maxelts: 16000,
  annotate: false, milliseconds: false,
}
const ID = "[1-9][0-9]{12}|[1-9][0-9]{15}|[1-9][0-9]{24,33}"
const MESSAGE = new RegExp(`^(${ID})(?:\\.([1-9][0-9]{12}|[1-9][0-9]{15})(?:\\.(0|[1-9][0-9]{0,5})(?:\\.([\\w-]{1,100}))?)?)?$`)
const HANDLE = new RegExp(`^(leased/|(?:(?:${ID})\\.(?:batch|slice|part)/){0,2})([^/]+)$`)
const DIRECTORY = new RegExp(`^(?:${ID})\\.(?:batch|slice|part)$`)
const BUCKET = /^[1-9][0-9]{15}$/
const MINUTE = 60_000_000, HOUR = 3_600_000_000, TRIES = 20, LIMIT = 1000, BTRFS = 0x9123683e
const UNIQUE = String(randomInt(1_000_000_000)).padStart(9, "0")
const STEM = `${hostname().replace(/[^\w-]/g, "_").slice(0, 40)}-${process.pid}-${randomBytes(5).toString("hex")}`
let last = 1e15, count = 0

const now = () => Math.floor((performance.timeOrigin + performance.now()) * 1000)
const token = () => `${STEM}-${++count}`
const newId = () => `${(last = Math.max(now(), last + 1))}${UNIQUE}`
const folder = (path) => path.slice(0, path.lastIndexOf("/") + 1)

export class Failed extends Error {
  constructor(status, text) { super(text); this.status = status }
}
const stop = (status, text) => { throw new Failed(status, text) }

/** Run a call; null if what it names is not there. */
function there(call) {
  try { return call() } catch (error) { if (error.code === "ENOENT" || error.code === "ENOTDIR") return null; throw error }
}

function parse(name) {
  const [, id, until, n, token] = MESSAGE.exec(name) ?? []
  if (!id) return null
  const kind = !until ? "ready" : n !== undefined && !token ? "delayed" : "leased"
  return { id, kind, until: until ? Number(until.padEnd(16, "0")) : 0, n: until ? Number(n ?? 1) : 0, token: token ?? "" }
}

function byOrder(turn) {  // (PRIORITY, TIME UNIQUE); an id without a priority goes first
  const key = ({ id }) => id.length > 25 ? [Number(id.slice(0, -25)), id.slice(-25)] : [0, id.padEnd(25, "0")]
  return (one, two) => {
    const [a, b] = [key(one), key(two)]
    return a[0] - b[0] || (a[1] < b[1] ? -turn : a[1] > b[1] ? turn : 0)
  }
}

export class Queue {
  constructor(path, given = {}) {
    this.path = path
    const text = there(() => fs.readFileSync(`${path}/queue.json`, "utf8"))
    let stored = {}
    try { if (text !== null) stored = JSON.parse(text) } catch { stored = null }
    if (stored === null || typeof stored !== "object" || Array.isArray(stored)) stop(1, `${path}/queue.json is not a JSON object`)
    for (const key of Object.keys(stored)) key in DEFAULTS || stop(1, `${path}/queue.json has a key ${key} that this program does not know`)
    this.settings = { ...DEFAULTS, ...given, ...stored, ...(given.lease ? { lease: given.lease } : {}) }
    if (this.settings.format !== 1 || !["auto", "native"].includes(this.settings.layout)) stop(1, `${path} is of another format or layout`)
  }

  // --- files and directories

  at(path) { return `${this.path}/${path}` }
  sync(...folders) {  // btrfs flushes a rename into a directory apart from what it left: there it is the whole filesystem
    if (!this.settings.sync) return
    if (fs.statfsSync(this.path).type === BTRFS) return void execFileSync("sync", ["-f", this.path])
    for (const each of folders) there(() => {
      const fd = fs.openSync(this.at(each), "r")
      try { fs.fsyncSync(fd) } finally { fs.closeSync(fd) }
    })
  }
  make(path) {  // a directory inside the queue has the queue's own mode
    try { fs.mkdirSync(this.at(path)); fs.chmodSync(this.at(path), fs.statSync(this.path).mode & 0o7777) }
    catch (error) { if (error.code !== "EEXIST") throw error }
    this.sync(dirname(path))
  }
  into(path) {  // the room, and the bucket in it
    const [room, bucket] = path.split("/")
    this.make(room)
    if (BUCKET.test(bucket)) this.make(`${room}/${bucket}`)
  }
  move(from, to) {  // the exact name to one that nobody else can make; its bucket may have to be made, or made again
    for (let tries = 0; tries < TRIES; tries++) {
      if (there(() => (fs.renameSync(this.at(from), this.at(to)), true))) return to
      if (!there(() => fs.lstatSync(this.at(from))) || !to.includes("/")) stop(4, `${from} is gone`)
      this.into(to)
    }
    stop(1, `the directory of ${to} is removed as fast as it is made`)
  }
  target(path) {  // the body of a link of ours, null if it is none; nothing is followed
    const target = there(() => fs.readlinkSync(this.at(path), { encoding: "buffer" }))
    return target?.[0] === 58 ? target.subarray(1) : null
  }
  body(path) {
    if (fs.lstatSync(this.at(path)).isSymbolicLink()) return this.target(path) ?? stop(1, `${path} is a link to elsewhere`)
    const fd = fs.openSync(this.at(path), fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW | fs.constants.O_NONBLOCK)
    try { return fs.readFileSync(fd) } finally { fs.closeSync(fd) }
  }
  bucket(room, until) { const length = room === "later" ? MINUTE : HOUR; return `${room}/${until - (until % length)}/` }
  later(id, until, n) { return `${this.bucket("later", until)}${id}.${until}.${n}` }

  // --- put

  put(body, { link = this.settings.links, delay = 0, priority } = {}) {
    const { priorities, default_priority, max_size } = this.settings, data = Buffer.from(body)
    if (max_size && data.length > max_size) stop(1, "the body is longer than max_size")
    if (priority && !priorities) stop(1, "this queue has no priorities")
    if (!there(() => fs.statSync(this.path))) { fs.mkdirSync(this.path, { recursive: true }); this.make("leased") }
    for (let tries = 0; tries < TRIES; tries++) {
      const id = `${priorities ? priority ?? default_priority : ""}${newId()}`
      const place = delay ? this.later(id, now() + Math.round(delay * 1e6), 0) : id
      if (delay) this.into(place)
      if ((link && this.symlink(data, place)) || this.create(data, `${id}.new`, place)) {
        this.sync(folder(place))
        return id
      }
    }
    stop(1, `cannot put to ${this.path}: its names are taken, or its directories are removed as fast as they are made`)
  }
  symlink(data, place) {  // one call; not where the umask hides files from somebody whom the directory lets in
    const mode = fs.statSync(this.path).mode, umask = process.umask()
    if (data.length > LIMIT || data.includes(0) || (mode & 0o010 && umask & 0o040) || (mode & 0o001 && umask & 0o004)) return false
    try { fs.symlinkSync(Buffer.concat([Buffer.from(":"), data]), this.at(place)); return true } catch (error) {
      if (["EPERM", "EOPNOTSUPP", "ENOSYS", "EINVAL", "ENAMETOOLONG", "EILSEQ", "EEXIST", "ENOENT"].includes(error.code)) return false
      throw error
    }
  }
  create(data, fresh, place) {
    const fd = fs.openSync(this.at(fresh), "wx", 0o666)
    try {
      try { fs.writeFileSync(fd, data); if (this.settings.sync) fs.fsyncSync(fd) } finally { fs.closeSync(fd) }
      fs.linkSync(this.at(fresh), this.at(place))  // which never replaces
    } catch (error) {
      if (["EPERM", "EOPNOTSUPP", "ENOSYS", "EMLINK"].includes(error.code)) { fs.renameSync(this.at(fresh), this.at(place)); return true }
      fs.rmSync(this.at(fresh), { force: true })
      if (error.code === "EEXIST" || error.code === "ENOENT") return false
      throw error
    }
    fs.rmSync(this.at(fresh), { force: true })
    return true
  }

  // --- get

  *list(prefix, depth = 0) {  // the messages in a directory, and in slices, batches and parts in it
    for (const entry of there(() => fs.readdirSync(this.at(prefix || "."), { withFileTypes: true })) ?? []) {
      const name = entry.isDirectory() ? null : parse(entry.name)
      if (name && (entry.isFile() || entry.isSymbolicLink())) yield { ...name, prefix, path: prefix + entry.name, link: entry.isSymbolicLink() }
      else if (entry.isDirectory() && depth < 2 && DIRECTORY.test(entry.name)) yield* this.list(`${prefix}${entry.name}/`, depth + 1)
    }
  }
  claimable() {
    const time = now(), margin = this.settings.margin * 1e6
    const begun = (there(() => fs.readdirSync(this.at("later"))) ?? []).filter((each) => BUCKET.test(each) && Number(each) <= time)
    return ["", "leased/", ...begun.map((each) => `later/${each}/`)].flatMap((each) => [...this.list(each)])
      .filter((each) => each.until + (each.kind === "leased" ? margin : 0) <= time)
      .sort(byOrder(this.settings.order === "lifo" ? -1 : 1))
  }
  get({ lease = this.settings.lease } = {}) {
    if (fs.existsSync(this.at("paused"))) return null
    for (let look = 0; look < 2; look++)  // a listing may miss a name that is being renamed
      for (const seen of this.claimable()) {
        const body = seen.link ? this.target(seen.path) : null  // read before the claim: a link never changes
        if (seen.link && body === null) continue
        if (this.settings.max_attempts && seen.n >= this.settings.max_attempts) { this.bury(seen); continue }
        const until = Math.max(now() + Math.round(lease * 1e6), seen.until + 1)
        const handle = `leased/${seen.id}.${until}.${Math.min(seen.n + 1, 999999)}.${token()}`
        try { this.move(seen.path, handle) } catch (error) { if (error.status === 4) continue; throw error }
        if (seen.n && seen.prefix !== "leased/") this.carry(seen.path, handle, seen.id)
        const held = new Lease(this, handle, body ?? Buffer.alloc(0))
        try { if (body === null) held.body = this.body(handle); return held } catch (error) {  // a failed delivery
          held.retry(`cannot be read: ${error.code ?? error.message}`)
        }
      }
    return null
  }
  bury(seen) {  // out of attempts: whoever meets it moves it, and another program may be faster
    const why = `delivered ${seen.n} times and never acknowledged${seen.token && `, last held by ${seen.token}`}`
    try { this.end(seen, seen.kind === "leased" ? why : null, null) } catch (error) { if (error.status !== 4) throw error }
  }
  end(held, error, leasedAt) {  // to dead/, with the reason
    const time = now(), place = `${this.bucket("dead", time)}${held.id}.${time}.${held.n}`
    this.change(held, place, error, leasedAt)
    this.sync(folder(place), folder(held.path))
  }

  // --- the note of a failure lies beside its message, and follows it

  carry(from, to, id) { there(() => fs.renameSync(this.at(`${folder(from)}${id}.error`), this.at(`${folder(to)}${id}.error`))) }
  forget(path, id) { fs.rmSync(this.at(`${folder(path)}${id}.error`), { force: true }) }
  change(held, to, error = null, leasedAt = null) {
    if (!there(() => fs.lstatSync(this.at(held.path)))) stop(4, `${held.path} is gone`)
    if (error !== null) {
      const note = this.at(`${folder(to)}${held.id}.error`)
      this.into(to)
      fs.rmSync(`${note}.new`, { force: true })
      fs.writeFileSync(`${note}.new`, JSON.stringify({ error, at: now(), leased_at: leasedAt }), { flag: "wx" })
      fs.renameSync(`${note}.new`, note)
    }
    try { this.move(held.path, to) } catch (failure) { if (error !== null) this.forget(to, held.id); throw failure }
    if (folder(held.path) !== folder(to)) error === null ? this.carry(held.path, to, held.id) : this.forget(held.path, held.id)
  }

  /** Return the lease that a handle names. */
  lease(handle) { return new Lease(this, handle) }
}

export class Lease {
  constructor(queue, handle, body) {
    const [, prefix, name] = HANDLE.exec(handle ?? "") ?? [], held = name && parse(name)
    if (!held || held.kind !== "leased") stop(2, `${handle} is not the handle of a lease`)
    const facts = there(() => fs.lstatSync(queue.at(handle))) ?? stop(4, `${handle} is gone`)
    Object.assign(this, { queue, prefix, handle, id: held.id, attempts: held.n, until: held.until })
    this.leasedAt = Math.floor(facts.ctimeMs * 1000)  // its last rename was the claim or a renewal
    if (body) this.body = body
    else Object.defineProperty(this, "body", { get: () => queue.body(handle) })
  }
  get held() { return { id: this.id, n: this.attempts, path: this.handle } }
  ack() {
    const { queue, handle, prefix, id } = this
    if (queue.settings.keep_done) {
      const time = now(), place = `${queue.bucket("done", time)}${id}.${time}.${this.attempts}`
      if (fs.lstatSync(queue.at(handle)).nlink === 1) fs.lutimesSync(queue.at(handle), this.leasedAt / 1e6, this.leasedAt / 1e6)
      queue.move(handle, place)
      queue.sync(folder(place))
    } else there(() => (fs.unlinkSync(queue.at(handle)), true)) ?? stop(4, `${handle} is gone`)
    queue.forget(handle, id)
    queue.sync(prefix || ".")
  }
  renew(seconds = this.queue.settings.lease) {
    const until = Math.max(now() + Math.round(seconds * 1e6), this.until + 1)
    this.handle = this.queue.move(this.handle, `leased/${this.id}.${until}.${this.attempts}.${token()}`)
    this.until = until
    return this.handle
  }
  release() {
    if (this.attempts > 1) this.queue.change(this.held, this.queue.later(this.id, now(), this.attempts - 1))
    else this.queue.move(this.handle, this.id)
  }
  retry(error = "failed") {
    const { queue, attempts } = this, { backoff, max_backoff, max_attempts } = queue.settings
    if (max_attempts && attempts >= max_attempts) return this.reject(error)
    const pause = Math.min(max_backoff, backoff * 2 ** (attempts - 1)) * (0.5 + Math.random() / 2)
    queue.change(this.held, queue.later(this.id, now() + Math.round(pause * 1e6), attempts), error, this.leasedAt)
  }
  reject(error = "rejected") { this.queue.end(this.held, error, this.leasedAt) }
}

// --- the command line

function run(verb, path, ...words) {
  const named = Object.fromEntries(words.filter((each) => /^[a-z_]+=/.test(each)).map((each) => {
    const at = each.indexOf("="), text = each.slice(at + 1)
    return [each.slice(0, at), text !== "" && Number.isFinite(Number(text)) ? Number(text) : text]
  }))
  const handle = words.find((each) => !/^[a-z_]+=/.test(each))
  if (!path) stop(2, "usage: protocol.mjs VERB QUEUE [HANDLE] [WORD=VALUE]...")
  const queue = new Queue(path, Object.fromEntries(Object.entries(named).filter(([key]) => key in DEFAULTS)))
  switch (verb) {
    case "put": return queue.put(fs.readFileSync(0), { ...named, ...(named.link ? { link: true } : {}) })
    case "get": return (queue.get() ?? stop(3, `nothing to get from ${path}`)).handle
    case "body": return void process.stdout.write(queue.lease(handle).body)
    case "ack": case "release": return queue.lease(handle)[verb]()
    case "renew": return queue.lease(handle).renew()
    case "retry": case "reject": return queue.lease(handle)[verb](named.error === undefined ? undefined : String(named.error))
    default: return stop(2, `there is no verb ${verb}`)
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(fs.realpathSync(process.argv[1])).href) {
  try {
    const text = run(...process.argv.slice(2))
    if (text) console.log(text)
  } catch (error) {
    console.error(error.message)
    process.exitCode = error.status ?? 1
  }
}
