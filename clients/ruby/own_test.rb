# Run by worker_test.rb: the ways to copy, drop and detach a lock, and what only Ruby has.
require "pathname"
require "stringio"

def is(so, what)
  so or raise what
end

# Whether the block raises that class, or a LockError with such a text.
def refused?(error = RedlockAgent::LockError)
  yield
  false
rescue RedlockAgent::LockError, TypeError => e
  error === e || (error.is_a?(Regexp) && error.match?(e.message)) || raise
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
  away = RedlockAgent.new("/nonexistent/s")
  [{ label: "\xff" }, { concurrency: Float::NAN }].each { |options| is refused?(/UTF-8|want a whole number/) { away.lock(key, **options) }, "asked with #{options}" }
  ["soon", nil, Float::NAN, 0].each { |patience| is refused? { RedlockAgent.new(patience: patience) }, "the patience #{patience.inspect}" }
  left(agent, key)
  says
  doubts
  hears
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

# Work that is left early has failed, and is done by the next caller.
def left(agent, key)
  [1].each { agent.once_per("#{key} left", 3600) { break } }
  catch(:early) { agent.once_per("#{key} left", 3600) { throw :early } }
  is [agent.once_per("#{key} left", 3600) { next }, agent.once_per("#{key} left", 3600) { raise "again" }] == [true, false], "work that is left early"
end

CLOCK = Struct.new(:ahead).new(0)
RedlockAgent.singleton_class.prepend(Module.new { def clocks = super.map { |now| now + CLOCK.ahead } })

# Calls the block with an agent that answers a request in this way, and with its side of the connection.
def answered(*parts)
  path = "/tmp/redlock-own-#{Process.pid}"
  server = UNIXServer.new(path)
  connection = nil
  answers = Thread.new do
    connection = server.accept
    connection.gets("pulse")
    parts.each { |part| part.respond_to?(:call) ? part.call : connection.write(part) }
    connection.gets("0\r\n\r\n") && connection.write(chunk('{"released":true}'))
  rescue SystemCallError
    nil # the client has ended the connection
  end
  yield RedlockAgent.new(path, patience: 100), ->(line) { connection.write(chunk(line)) }
ensure
  CLOCK.ahead = 0
  answers&.join
  [connection, server].compact.each(&:close)
  File.delete(path)
end

def chunk(line) = "#{(line.bytesize + 1).to_s(16)}\r\n#{line}\n\r\n"

HELD = "HTTP/1.1 200 OK\r\nRedlock-Agent: 1\r\n\r\n#{chunk('{"fence":7,"mark":0,"valid_ms":60000}')}"

# A wait of more than 10 s is told once.
def says
  said, $stderr = $stderr, StringIO.new
  lives = "HTTP/1.1 102 Processing\r\n\r\n"
  refused = "HTTP/1.1 423 Locked\r\nRedlock-Agent: 1\r\nContent-Length: 2\r\n\r\n{}"
  answered(-> { CLOCK.ahead = 11 }, lives, lives, refused) { |agent| is refused?(RedlockAgent::LockHeld) { agent.lock("key", label: "pay") }, "a key that is held" }
  said, $stderr = $stderr, said
  is said.string == "still waiting for a lock after 10 s (pay)\n", "said: #{said.string}"
ensure
  $stderr = said if $stderr.is_a?(StringIO)
end

# A lock that isn't certain may still be the client's own, also when it is certain again.
def doubts
  answered(HELD) do |agent, _|
    agent.lock("key") do |lock|
      [100, 0].each do |ahead|
        CLOCK.ahead = ahead
        is lock.held? == ahead.zero? && refused?(/would wait for itself/) { agent.lock("key", wait: 0) }, "a lock in itself, #{ahead} s later"
      end
    end
  end
end

# What has arrived and was not read counts before a lock is lost.
def hears
  answered(HELD) do |agent, say|
    agent.lock("key") do |lock|
      20.times do |n|
        CLOCK.ahead += 100
        say.call(%({"mark":0,"valid_ms":#{(n + 2) * 100_000}}))
        lock.check
      end
    end
  end
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
