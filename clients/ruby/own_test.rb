# Run by worker_test.rb: the ways to copy, drop and detach a lock, and what only Ruby has.
require "pathname"

def is(so, what)
  so or raise what
end

def refused?(error = RedlockAgent::LockError)
  yield
  false
rescue error
  true
end

def held?(agent, key)
  refused?(RedlockAgent::LockHeld) { agent.lock(key, wait: 0) { nil } }
end

def own(agent, key)
  dropped(agent, key)
  detached(agent, key)
  lock = agent.lock(key, wait: 60)
  is refused? { lock.dup } && refused? { lock.clone } && refused?(TypeError) { Marshal.dump(lock) }, "a copy of a lock"
  asked = trapped { [lock.held?, lock.check, lock.fence] }
  is asked == [true, nil, lock.fence], "asked in a signal handler: #{asked}"
  is trapped { lock.unlock }.nil? && !held?(agent, key), "released in a signal handler"
  is RedlockAgent.new(Pathname.new("/run/s")).address == "/run/s", "a path"
  is RedlockAgent.new("[::1]:7070", token: "secret\n").token == "secret", "a token of a file"
  [nil, "", "a.sock", "localhost", "http://127.0.0.1:1", ":7070", "/#{"x" * 150}"].each { |to| is refused? { RedlockAgent.new(to) }, "the address #{to.inspect}" }
  is refused? { agent.lock("\xff", wait: 0) { nil } }, "a key that isn't UTF-8"
  is refused? { agent.once(key, "soon") { raise "the work has begun" } }, "a time that is no number"
end

# The lock of a Fiber or an Enumerator that nobody resumes any more ends with it, and that of lock without a block doesn't. The collector may find a
# few of them on the stack.
def dropped(agent, key)
  fibers = Array.new(20) { |i| "#{key}-#{i}" }
  fibers.each { |dropped| Fiber.new { agent.lock(dropped, ttl: 6) { Fiber.yield } }.resume }
  agent.lock("#{key}-kept", ttl: 6)
  while fibers.count { |dropped| held?(agent, dropped) } > 10
    Array.new(1000) { "#{key}-#{rand}" } # has the stack forget
    GC.start
    sleep 0.1
  end
  is held?(RedlockAgent.new(agent.address), "#{key}-kept"), "a lock that nobody refers to any more"
end

# The lock of a process that becomes a daemon is free, although the daemon lives.
def detached(agent, key)
  from, to = IO.pipe
  Process.wait(fork do
    agent.lock(key, wait: 60) do |lock|
      Process.daemon
      to.puts lock.held?, Process.pid
      sleep
    end
  end)
  to.close
  held, daemon = from.gets, from.gets.to_i
  agent.lock(key, wait: 60) { nil } # while the daemon lives
  is held == "false\n", "a daemon holds the lock of its former process"
ensure
  Process.kill("KILL", daemon) if daemon
end

# Returns what the block returns in a signal handler.
def trapped
  done = Queue.new
  trap("USR1") do
    done << yield
  rescue Exception => e
    done << e
  end
  Process.kill("USR1", Process.pid)
  done.pop
end
