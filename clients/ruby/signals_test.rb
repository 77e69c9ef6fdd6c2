# Run by signals_test.go: an exception, or a signal whose handler asks and releases, comes at each line of the client that a lock executes.
require_relative "redlock_agent"
$stdout.sync = true

CLIENT = File.expand_path("redlock_agent.rb", __dir__)
AGENT = RedlockAgent.new(ENV["ADDRESS"])
class Interruption < Exception; end

# Runs the block, and interrupts at the line that is the nth. Returns whether there was one.
def at(nth, interrupt)
  main = Thread.current
  lines = 0
  trace = TracePoint.new(:line) do |point|
    next unless point.path == CLIENT && Thread.current == main && (lines += 1) == nth

    trace.disable
    interrupt.call
  end
  trace.enable
  yield
rescue Interruption
  nil # at the line
ensure
  trace.disable
  return lines >= nth
end

WAYS = {
  "block" => ->(key) { AGENT.lock(key) { |lock| $lock = lock; lock.check } },
  "once" => ->(key) { AGENT.once(key, 0.001) { |lock| $lock = lock; 1 } },
  "lock" => lambda do |key|
    $lock = AGENT.lock(key)
    begin
      $lock.check
      $lock.unlock
    rescue Interruption
      $lock.unlock # as nobody else does
    end
  end
}
ask = lambda do
  next unless $lock

  $lock.check if $lock.held?
  $lock.fence
end
HANDLERS = {
  "raises" => -> { raise Interruption },
  "is told by a signal that asks" => -> { trap("USR1") { ask.call }; Process.kill("USR1", Process.pid) },
  "is told by a signal that releases" => -> { trap("USR1") { ask.call; $lock&.unlock }; Process.kill("USR1", Process.pid) }
}
WAYS.each do |way, lock|
  HANDLERS.each do |handler, interrupt|
    lines = 1.step.find do |n|
      key = "#{way}-#{handler}-#{n}"
      $lock = nil
      more = at(n, interrupt) do
        lock.call(key)
      rescue RedlockAgent::LockLost
        raise unless handler.include?("releases")
      rescue RedlockAgent::LockNotRemembered
        raise if handler.include?("asks")
      end
      begin
        AGENT.lock(key, wait: 10) {}
      rescue RedlockAgent::LockHeld
        abort "#{way}: #{handler}: the key is held after line #{n}"
      end
      !more
    end
    puts "#{way}: #{handler}: #{lines - 1} lines"
  end
end
(Thread.list - [Thread.main]).each { |thread| thread.join(60) || abort("a thread stays") }
puts "done"
