# A lock of redlock's agent. Copy this file; it needs Ruby 3.0 and nothing else.
#
#     require_relative "redlock_agent"
#
#     agent = RedlockAgent.new("/run/redlock/redlock.sock")  # or RedlockAgent.new("10.0.0.5:7070", token: "…")
#     agent.lock("order:42", wait: 2) do |lock|              # without wait: waits without limit; wait: 0 doesn't wait
#       pay(fence: lock.fence)
#       lock.check                                           # raises RedlockAgent::LockLost if the lock isn't certain any more
#     end
#
#     lock = agent.lock("order:42")                          # without a block: until lock.unlock
#     agent.once_per("report", 3600) { report }              # once an hour, on one of all machines
#     agent.once("order:42", 86_400) { pay }                 # and its value for a day to whoever asks later
#
# The lock is held until the end of the block, or until this process ends; a child of fork doesn't have it. lock.check and lock.held? say
# whether it is still held: call one of them before whatever must not happen twice. docs/agent.md says how long a client may believe that.

require "json"
require "socket"

# The agent at a Unix socket, or at host:port with its token.
class RedlockAgent
  # The lock can't be had, or there is no agent.
  class LockError < StandardError
    attr_reader :moves # whether the agent is about to stop, and another may answer the next request
    attr_accessor :gone # whether no agent has answered
  end

  # Another holder has the lock. retry_after is when to try again, in seconds.
  class LockHeld < LockError
    attr_reader :retry_after

    def initialize(text, retry_after)
      super(text)
      @retry_after = retry_after
    end
  end

  # Nobody gets locks now: too few masters answer, or the agent has no room or is about to stop. retry_after is as in LockHeld.
  class LockUnavailable < LockError
    attr_reader :retry_after

    def initialize(text, retry_after, moves)
      super(text)
      @retry_after = retry_after
      @moves = moves
    end
  end

  # The work of once_per or once is done. result is what once remembers, as JSON.
  class LockDone < LockError
    attr_reader :result

    def initialize(text, result)
      super(text)
      @result = result
    end
  end

  # The lock was lost while it was held: the work may overlap with another holder's.
  class LockLost < LockError; end

  # The work of once_per or once is done, and the next caller may do it again. value is what the block has returned.
  class LockNotRemembered < LockError
    attr_reader :value

    def initialize(text, value = nil)
      super("the work is done, but the next caller may do it again: #{text}")
      @value = value
    end
  end

  PATIENCE_AT_END = 5

  attr_reader :address, :token, :patience

  # patience is how long nothing may be heard of the agent, in seconds.
  def initialize(address = "/run/redlock/redlock.sock", token: nil, patience: 10)
    @address = address.delete_prefix("unix:")
    @token = token
    @patience = patience
  end

  # Runs the block with the lock on the keys, and returns its value; without a block it returns the lock. Times are in seconds. heartbeat, at
  # least the ttl, frees the keys if this process is stopped for so long. concurrency is how many may hold the key at a time. once_per has
  # others get LockDone for the rest of a period in which the block has succeeded, and once for so long, with the block's value.
  def lock(*keys, wait: nil, ttl: nil, max_hold: nil, heartbeat: nil, label: nil, concurrency: nil, once_per: nil, once: nil, &work)
    times = { ttl: ttl, max_hold: max_hold, heartbeat: heartbeat, once_per: once_per, once: once }.compact.transform_values { |seconds| RedlockAgent.duration(seconds) }
    lock = acquire({ keys: keys.map { |key| key.encode(Encoding::UTF_8) }, label: label, concurrency: concurrency, pulse: RedlockAgent.duration([@patience / 3.0, 1e6].min), **times }.compact, wait)
    work ? under(lock, once, &work) : lock
  end

  private def under(lock, once)
    finished = raised = false # neither, if the block is left by break, throw, or the end of the thread
    begin
      value = yield lock
      result = once && RedlockAgent.remembered(value)
      finished = true
      result ? JSON.parse(result) : value # to whoever asks first as to those that ask later
    rescue Exception # whatever it is, it is raised again
      raised = true
      raise
    ensure
      error = lock.release(failed: !finished, result: result, value: value)
      raise error if error && !raised
    end
  end

  # Calls the block with the lock unless it has succeeded in this period, on any machine. Returns whether this call has.
  def once_per(key, period, **options, &work)
    raise ArgumentError, "no block is given" unless work

    begin
      held = lock(key, once_per: period, **options)
    rescue LockDone # of the agent, and not of the block
      return false
    end
    under(held, nil, &work)
    true
  end

  # Returns what the block returns, as JSON has it, or has returned to whoever has called it within the time to keep; at most 64 KiB.
  def once(key, keep, **options, &work)
    raise ArgumentError, "no block is given" unless work

    begin
      held = lock(key, once: keep, **options)
    rescue LockDone => e
      return (JSON.parse(e.result) unless e.result.to_s.empty?)
    end
    under(held, keep, &work)
  end

  def self.remembered(value)
    text = JSON.generate(value)
    raise LockNotRemembered.new("its result is longer than 64 KiB", value) if text.bytesize > 65_536

    text
  end

  def self.duration(seconds)
    format("%.6fs", seconds)
  end

  def connect
    host, _, port = @address.rpartition(":")
    connection = @address.start_with?("/") ? UNIXSocket.new(@address) : Socket.tcp(host.delete("[]"), port.to_i, connect_timeout: @patience)
    CONNECTIONS[connection] = connection
  end

  # Takes the lock, and asks again while another agent may take the place of this one: for a moment nobody may listen.
  private def acquire(ask, wait)
    limit = wait && RedlockAgent.clocks[0] + wait
    moves = 0 # until when another agent may come
    begin
      left = limit && [0, limit - RedlockAgent.clocks[0]].max
      Lock.new(self, left ? { **ask, wait: RedlockAgent.duration(left) } : ask)
    rescue LockError => e
      now = RedlockAgent.clocks[0]
      moves = limit || now + @patience if e.moves
      raise if !(e.moves || e.gone) || left&.zero? || now >= moves

      sleep [e.moves ? e.retry_after : 1, left].compact.min
      retry
    end
  end

  CONNECTIONS = ObjectSpace::WeakMap.new

  # Closes, in a child, its copies of the connections: a child that outlives this process would keep the locks.
  module CloseCopies
    def _fork
      pid = super
      CONNECTIONS.each_key(&:close) if pid.zero?
      pid
    end
  end
  Process.singleton_class.prepend(CloseCopies) if Process.respond_to?(:_fork) # since Ruby 3.1

  # Two clocks: the monotonic one stands still while a machine is suspended, and the other can be set.
  def self.clocks
    [Process.clock_gettime(Process::CLOCK_MONOTONIC), Process.clock_gettime(Process::CLOCK_REALTIME)]
  end

  # A lock while its block runs. fence is a number that is larger than those of all holders before, of the slot if there are several.
  class Lock
    attr_reader :fence, :slot

    def initialize(agent, ask)
      @agent = agent
      @mutex = Mutex.new
      @pid = Process.pid
      @sent = { 0 => RedlockAgent.clocks }
      @mark = @base = 0 # the newest that was sent, and the one that the newest line answers
      @forgotten = "the agent has not confirmed it" # why no quorum of the masters remembers the work, or nil
      @end = [0, 0]
      @text = "".b
      @word = ask.key?(:once_per) ? "done" : ("done " if ask.key?(:once)) # what ends a request whose work has succeeded
      begin
        @connection = agent.connect
        ask_for(ask)
      rescue SystemCallError, SocketError, IOError, JSON::ParserError, KeyError, TypeError => e
        raise LockError.new("no agent answers at #{agent.address}: #{e.message}").tap { |error| error.gone = true }
      ensure
        close unless @fence
      end
      @reader = Thread.new { read }
    end

    # Whether the lock is certain now.
    def held?
      doubt.nil?
    end

    # Raises LockLost unless the lock is certain now.
    def check
      reason = doubt
      raise LockLost, reason if reason
    end

    # Releases the lock, and raises LockLost if it had been lost, or LockNotRemembered. failed is for work of once_per or once that is to be
    # done again; result is what once remembers, as JSON.
    def unlock(failed: false, result: nil)
      error = release(failed: failed, result: result)
      raise error if error
    end

    # Releases the lock, in the process that took it, and returns the error that says what went wrong, or nil.
    def release(failed: false, result: nil, value: nil)
      reason = doubt
      return LockLost.new(reason) if Process.pid != @pid
      return @outcome if @asked # once more

      word = "#{@word}#{result}" if @word && !failed
      begin
        @mutex.synchronize do
          @asked = true
          @lost ||= "it was released"
          @connection.write("#{word.bytesize.to_s(16)}\r\n#{word}\r\n") if word
          @connection.write("0\r\n\r\n") # the end of the request's body
        end
        @reader.join(PATIENCE_AT_END)
      rescue SystemCallError, IOError
        nil # the lock is free when the connection is closed
      end
      close
      @reader.join
      reason ||= "the lock had ended before the end of the work" if @released == false
      @outcome = reason ? LockLost.new(reason) : (LockNotRemembered.new(@forgotten, value) if word && @forgotten)
    end

    private

    # Returns why the lock isn't certain now, or nil.
    def doubt
      return "the lock belongs to the process that took it, and not to its child" if Process.pid != @pid

      @mutex.synchronize { @lost || (certain? ? nil : "the agent has not said in time that the lock is still held") }
    end

    def certain?
      @lost.nil? && RedlockAgent.clocks.zip(@end).all? { |now, limit| now < limit }
    end

    # Closes the connection also if a child has a copy of it.
    def close
      @connection&.shutdown
    rescue SystemCallError, IOError
      nil # it has ended already
    ensure
      @connection&.close
    end

    def ask_for(ask)
      body = "#{JSON.generate(ask)}\n"
      token = @agent.token ? "Authorization: Bearer #{@agent.token}\r\n" : ""
      @connection.write("POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nRedlock-Agent: 1\r\nContent-Type: application/json\r\n#{token}" \
                        "Transfer-Encoding: chunked\r\n\r\n#{body.bytesize.to_s(16)}\r\n#{body}\r\n")
      status, header = head
      status, header = head while status == "102" # of an agent that lives, and has no lock yet
      require_ok(status, header)
      first = take
      take until certain? # after a wait of many minutes, only the answer to the mark is new enough
      @slot = first.fetch("slot", 0)
      @fence = first.fetch("fence")
    end

    def head
      raise LockError, "the agent at #{@agent.address} does not answer in time" unless @connection.wait_readable(@agent.patience)

      status = (@connection.gets || raise(EOFError, "the connection has ended")).split[1]
      header = {}
      while (line = @connection.gets&.strip) && !line.empty?
        name, value = line.split(":", 2)
        header[name.downcase] = value.to_s.strip
      end
      [status, header]
    end

    def require_ok(status, header)
      raise LockError, "something else than an agent of version 1 answers at #{@agent.address}" if header["redlock-agent"] != "1"
      return if status == "200"

      problem = JSON.parse(@connection.read(header["content-length"].to_i))
      text = problem["detail"] || problem["title"]
      after = header.fetch("retry-after", 1).to_i
      outcome = header["redlock-outcome"]
      raise LockHeld.new(text, after) if status == "423"
      raise LockDone.new(text, problem["result"]) if outcome == "done"
      raise LockUnavailable.new("#{status}: #{text}", after, status == "503") if status == "503" || outcome == "no_quorum"

      raise LockError, "#{status}: #{text}"
    end

    # Takes the next line. One that answers no new mark is answered with one: so the lines never count from long ago.
    def take
      line = JSON.parse(next_line)
      @mutex.synchronize do
        if line.key?("valid_ms")
          valid = line["valid_ms"] / 1000.0
          @end = @sent.fetch(line["mark"]).map { |clock| clock + valid * 0.99 }
          if line["mark"] > @base
            @base = line["mark"]
            @sent.delete_if { |mark, _| mark < @base }
          elsif @mark == @base && !@asked
            @sent[@mark += 1] = RedlockAgent.clocks
            @connection.write("1\r\n\n\r\n")
          end
        end
        @lost = line["detail"] || line["lost"] if line.key?("lost")
        @released, @forgotten = line["released"], (line["detail"] if line["forgotten"]) if line.key?("released")
      end
      line
    end

    # Returns the next line of a body in chunks.
    def next_line
      until (line = @text.slice!(/\A.*?\n/m))
        size = @connection.gets.to_s.to_i(16)
        raise EOFError, "the stream has ended" if size.zero?

        @text << @connection.read(size)
        @connection.gets
      end
      line
    end

    # Reads until the last line. An end that this side didn't ask for is a loss, whoever has asked for it.
    def read
      line = take until line&.key?("released") || line&.key?("lost")
      reason = "somebody else has ended it"
    rescue SystemCallError, IOError, JSON::ParserError, KeyError, TypeError => e
      reason = "the connection to the agent has ended: #{e.message}"
    ensure
      @mutex.synchronize { @lost ||= reason }
    end
  end
end
