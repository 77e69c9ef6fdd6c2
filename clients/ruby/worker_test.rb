# Run by clients_test.go: takes a lock, and prints what becomes of it.
require_relative "redlock"
$stdout.sync = true
mode, *keys = ARGV.map { |argument| argument.dup.force_encoding("UTF-8") }
agent = RedlockAgent.new(ENV["ADDRESS"], token: ENV["TOKEN"].to_s.empty? ? nil : ENV["TOKEN"])
options = { wait: ENV["WAIT"], ttl: ENV["TTL"], max_hold: ENV["MAX_HOLD"], heartbeat: ENV["HEARTBEAT"] }.reject { |_, text| text.to_s.empty? }.transform_values(&:to_f)
options[:concurrency] = ENV["CONCURRENCY"].to_i if ENV["CONCURRENCY"]
before = 0

# Forks, and returns whether this is a child that is to leave the block by its end.
def split(lock, how)
  child = fork
  if child.nil?
    begin
      lock.check
    rescue RedlockAgent::LockLost
      puts "child #{lock.held? ? "True" : "False"}"
    end
    exit if how == "exit"
    raise "in the child" if how == "raise"
    sleep 0.02 while how == "outlive" && !File.exist?(ENV["STOP"])
    return true
  end
  return false if how == "outlive"

  Process.wait child
  puts "forked"
  false
end

last = nil
begin
  if mode == "count"
    5.times do
      agent.lock("counter", **options) do
        n = File.read(keys[0]).to_i
        sleep 0.002
        File.write(keys[0], (n + 1).to_s)
      end
    end
  else
    agent.lock(*keys, **options) do |lock|
      puts "held #{ENV["CONCURRENCY"] ? lock.slot : lock.fence}"
      last = lock
      next if ENV["FORK"] && split(lock, ENV["FORK"])

      until File.exist?(ENV["STOP"])
        now = (Time.now.to_f * 1000).floor
        lock.check
        before = now
        sleep 0.02
      end
    end
    last.check if mode == "after"
  end
  puts "done"
rescue RedlockAgent::LockHeld => e
  puts "refused #{e.retry_after}"
rescue RedlockAgent::LockLost => e
  puts "lost #{before} #{e.message}"
rescue RedlockAgent::LockError => e
  puts "error #{e.message}"
end
