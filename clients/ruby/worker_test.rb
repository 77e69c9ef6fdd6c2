# Run by clients_test.go: takes a lock, and prints what becomes of it.
require_relative "redlock_agent"
$stdout.sync = true
mode, *keys = ARGV.map { |argument| argument.dup.force_encoding("UTF-8") }
agent = RedlockAgent.new(ENV["ADDRESS"], token: ENV["TOKEN"].to_s.empty? ? nil : ENV["TOKEN"], patience: ENV.fetch("PATIENCE", "10").to_f)
options = { wait: ENV["WAIT"], ttl: ENV["TTL"], max_hold: ENV["MAX_HOLD"], heartbeat: ENV["HEARTBEAT"] }.reject { |_, text| text.to_s.empty? }.transform_values(&:to_f)
options[:concurrency] = ENV["CONCURRENCY"].to_i if ENV["CONCURRENCY"]
options[:values] = [ENV["VALUES"].split("=", 2)].to_h if ENV["VALUES"]
keep = ENV.fetch("KEEP", "3600").to_f
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

# Takes the lock again and again, and prints what becomes of it.
def compete(agent, key, options)
  parent = Process.pid
  now = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) }
  until File.exist?(ENV["STOP"])
    fence = 0
    begin
      agent.lock(key, **options) do |lock|
        fence = lock.fence
        puts "has #{fence} #{now.call}"
        next if rand < 0.3 && split(lock, %w[exit return raise].sample)

        rand(10).times do
          before = now.call
          lock.check
          puts "had #{fence} #{before}"
          sleep 0.02
        end
        sleep 2 if rand < 0.1 # work that doesn't look
        puts "left #{fence} #{now.call}"
      end
      puts "freed #{fence}"
    rescue RedlockAgent::LockLost
      exit! if Process.pid != parent
      puts "lost #{fence}"
    rescue RedlockAgent::LockError
      sleep 0.1
    end
  end
end

work = lambda do |lock|
  raise RedlockAgent::LockDone.new(keys[1], nil) if keys[1] == "not mine"
  raise RedlockAgent::LockError, keys[1] if keys.size > 1

  puts "works" if ENV["SLOWLY"]
  sleep 0.02 while ENV["SLOWLY"] && !File.exist?(ENV["STOP"])
  { paid: lock.fence.positive? }
end

last = nil
begin
  if mode == "compete"
    compete(agent, keys[0], options)
  elsif mode == "own" # what only Ruby has: the block's value, and its early end
    raise "no value" unless agent.lock(keys[0]) { |lock| lock.held? && 1 } == 1

    [1].each { agent.lock(keys[0]) { break } }
    lock = agent.lock(keys[0], wait: 60)
    2.times { lock.unlock }
    require_relative "own_test"
    own(agent, keys[0])
  elsif mode == "once_per"
    puts "ran #{agent.once_per(keys[0], keep, **options, &work)}"
  elsif mode == "once"
    puts "value #{JSON.generate(agent.once(keys[0], keep, **options, &work))}"
  elsif mode == "equal" # although JSON has no symbols
    first, later = Array.new(2) { agent.once(keys[0], 3600, **options) { { paid: :yes } } }
    puts "equal #{first == later}"
  elsif mode == "unwritable"
    begin
      agent.once(keys[0], keep, **options) { "\xff" }
    rescue RedlockAgent::LockNotRemembered => e
      puts "unwritable, and its value is there: #{e.value == "\xff"} #{e.message}"
    end
  elsif mode == "nested"
    agent.lock(keys[0]) { agent.lock(keys[-1], **options) { nil } }
  elsif mode == "kept"
    lock = agent.lock(keys[0], **options)
    lock.check
    puts "held #{lock.fence}"
    lock.unlock
  else
    options[:once_per] = keep if mode == "period"
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
rescue RedlockAgent::LockUnavailable => e
  puts "unavailable #{e.retry_after}"
rescue RedlockAgent::LockDone => e
  puts "already #{e.message}#{", retry after #{e.retry_after}" if e.retry_after}"
rescue RedlockAgent::LockNotRemembered => e
  puts "forgotten #{JSON.generate(e.value)} #{e.message}"
rescue RedlockAgent::LockError => e
  puts "error #{e.message}#{": #{e.value}" if e.value}"
end
