# A lock of redlock's agent. Copy this file; it needs Ruby 3.0 and nothing else.
#
#     require_relative "redlock"
#
#     agent = RedlockAgent.new("/run/redlock/redlock.sock")  # or RedlockAgent.new("10.0.0.5:7070", token: "…")
#     agent.lock("order:42", wait: 2) do |lock|              # without wait: waits without limit; wait: 0 doesn't wait
#       pay(fence: lock.fence)
#       lock.check                                           # raises RedlockAgent::LockLost if the lock isn't certain any more
#     end
#
# The lock is held until the end of the block, or until this process ends; a child of fork doesn't have it. lock.check and lock.held? say
# whether it is still held: call one of them before whatever must not happen twice. docs/agent.md says how long a client may believe that.

require "json"
require "socket"

# The agent at a Unix socket, or at host:port with its token.
class RedlockAgent
  # The lock can't be had, or there is no agent.
  class LockError < StandardError; end

  # Another holder has the lock. retry_after is when to try again, in seconds.
  class LockHeld < LockError
    attr_reader :retry_after

    def initialize(text, retry_after)
      super(text)
      @retry_after = retry_after
    end
  end

  # The lock was lost while it was held: the work may overlap with another holder's.
  class LockLost < LockError; end

  PATIENCE = 10 # seconds, for a response of the agent, beyond the wait
  PATIENCE_AT_END = 5

  attr_reader :address, :token

  def initialize(address = "/run/redlock/redlock.sock", token: nil)
    @address = address
    @token = token
  end

  # Runs the block with the lock on the keys, and returns its value. Times are in seconds. heartbeat, at least the ttl, frees the keys if
  # this process is stopped for so long. concurrency is how many may hold the key at a time.
  def lock(*keys, wait: nil, ttl: nil, max_hold: nil, heartbeat: nil, label: nil, concurrency: nil)
    times = { wait: wait, ttl: ttl, max_hold: max_hold, heartbeat: heartbeat }.compact.transform_values { |seconds| "#{seconds}s" }
    lock = Lock.new(self, { keys: keys.map { |key| key.encode(Encoding::UTF_8) }, label: label, concurrency: concurrency, **times }.compact, wait && wait + PATIENCE)
    failed = false
    begin
      yield lock
    rescue Exception # whatever it is, it is raised again
      failed = true
      raise
    ensure
      lost = lock.release
      raise LockLost, lost if lost && !failed
    end
  end

  def connect
    host, _, port = @address.rpartition(":")
    connection = @address.start_with?("/") ? UNIXSocket.new(@address) : Socket.tcp(host.delete("[]"), port.to_i, connect_timeout: PATIENCE)
    CONNECTIONS[connection] = connection
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

    def initialize(agent, ask, patience)
      @agent = agent
      @mutex = Mutex.new
      @pid = Process.pid
      @sent = { 0 => RedlockAgent.clocks }
      @mark = @base = 0 # the newest that was sent, and the one that the newest line answers
      @end = [0, 0]
      @text = "".b
      begin
        @connection = agent.connect
        ask_for(ask, patience)
      rescue SystemCallError, SocketError, IOError, JSON::ParserError, KeyError, TypeError => e
        raise LockError, "no agent answers at #{agent.address}: #{e.message}"
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

    # Releases the lock, in the process that took it, and returns why it was lost before, or nil.
    def release
      reason = doubt
      return reason if Process.pid != @pid

      begin
        @mutex.synchronize do
          @asked = true
          @lost ||= "it was released"
          @connection.write("0\r\n\r\n") # the end of the request's body
        end
        @reader.join(PATIENCE_AT_END)
      rescue SystemCallError, IOError
        nil # the lock is free when the connection is closed
      end
      close
      @reader.join
      reason || (@released == false ? "the lock had ended before the end of the work" : nil)
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

    def ask_for(ask, patience)
      body = "#{JSON.generate(ask)}\n"
      token = @agent.token ? "Authorization: Bearer #{@agent.token}\r\n" : ""
      @connection.write("POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nRedlock-Agent: 1\r\nContent-Type: application/json\r\n#{token}" \
                        "Transfer-Encoding: chunked\r\n\r\n#{body.bytesize.to_s(16)}\r\n#{body}\r\n")
      raise LockError, "the agent at #{@agent.address} does not answer in time" unless @connection.wait_readable(patience)

      require_ok
      first = take
      take until certain? # after a wait of many minutes, only the answer to the mark is new enough
      @slot = first.fetch("slot", 0)
      @fence = first.fetch("fence")
    end

    def require_ok
      status = (@connection.gets || raise(EOFError, "the connection has ended")).split[1]
      header = {}
      while (line = @connection.gets&.strip) && !line.empty?
        name, value = line.split(":", 2)
        header[name.downcase] = value.strip
      end
      raise LockError, "something else than an agent of version 1 answers at #{@agent.address}" if header["redlock-agent"] != "1"
      return if status == "200"

      problem = JSON.parse(@connection.read(header["content-length"].to_i))
      text = problem["detail"] || problem["title"]
      raise LockHeld.new(text, header.fetch("retry-after", 1).to_i) if status == "423"

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
        @released = line["released"] if line.key?("released")
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
