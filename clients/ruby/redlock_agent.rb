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
# whether it is still held: call one of them before whatever must not happen twice. docs/protocol.md says how long a client may believe that.
#
# A lock is the same in another thread or fiber. It can't be copied or serialized. Its own fiber's call for it, with the same agent, is refused.
# The end of the block frees it, wherever an exception comes; in a Fiber or Enumerator that is dropped, some seconds after that is collected.
# Without a block it is held until unlock, also if the lock is dropped or its thread ends: after an exception in unlock, call unlock again. A
# daemon has no locks of its parent. Locks can be taken and released in signal handlers, when objects are collected, and at exit.
# A block that is left by return, break or throw has failed (once), since Ruby doesn't tell these from the end of the thread; next ends it in order.

require "json"
require "socket"
require "weakref"

# The agent at a Unix socket, or at host:port with its token.
class RedlockAgent
  # The lock can't be had. value is what the work of once has returned, or what is remembered of it and isn't JSON.
  class LockError < StandardError
    attr_reader :value

    def initialize(text = nil, value = nil)
      super(text)
      @value = value
    end
  end

  # Another holder has the lock. retry_after is when to try again, in seconds.
  class LockHeld < LockError
    attr_reader :retry_after

    def initialize(text, retry_after)
      super(text)
      @retry_after = retry_after
    end
  end

  # Nobody gets locks now: too few masters answer, or the agent has no room or is about to stop, or there is none. retry_after is as in LockHeld.
  class LockUnavailable < LockError
    attr_reader :retry_after, :seen # :agent, if one has answered and another one may answer the next request; :end, if a connection has ended

    def initialize(text, retry_after = 1, seen = nil)
      super(text)
      @retry_after = retry_after
      @seen = seen
    end
  end

  # The work of once_per or once is done. result is what once remembers, as JSON. retry_after is when the next period of once_per begins.
  class LockDone < LockError
    attr_reader :result, :retry_after

    def initialize(text, result = nil, retry_after = nil)
      super(text)
      @result = result
      @retry_after = retry_after
    end
  end

  # The lock was lost while it was held: the work may overlap with another holder's.
  class LockLost < LockError; end

  # The work of once_per or once is done, and the next caller may do it again.
  class LockNotRemembered < LockError
    def initialize(text, value = nil)
      super("the work is done, but the next caller may do it again: #{text}", value)
    end
  end

  attr_reader :address, :token, :patience

  # patience is how long nothing may be heard of the agent, in seconds.
  def initialize(address = "/run/redlock/redlock.sock", token: nil, patience: 10)
    @address = address.to_s.delete_prefix("unix:")
    raise LockError, "the address #{address.inspect}: want the path of a socket, or host:port" unless @address.match?(%r{\A(/.+|(\[[\h:.]+\]|[^\s/:]+):\d+)\z})

    Socket.sockaddr_un(@address) if @address.start_with?("/")
    @token = token&.chomp # of a file
    @patience = RedlockAgent.duration(:patience, patience, 0.001).to_f
  rescue ArgumentError => e
    raise LockError, "the address #{address}: #{e.message}"
  end

  # Runs the block with the lock on the keys, and returns its value; without a block it returns the lock. Times are in seconds. heartbeat, at
  # least the ttl, frees the keys if this process is stopped for so long. concurrency is how many may hold the key at a time. With values, such
  # as { id: "CUS_1" }, the keys are templates, as in a rule: customer:{id:id}. once_per has
  # others get LockDone for the rest of a period in which the block has succeeded, and once for so long, with the block's value. A block that is
  # left by return, break or throw has failed, since Ruby doesn't tell these from the end of the thread: end it with next.
  def lock(*keys, wait: nil, ttl: nil, max_hold: nil, heartbeat: nil, label: nil, concurrency: nil, values: nil, once_per: nil, once: nil, &work)
    times = { ttl: ttl, max_hold: max_hold, heartbeat: heartbeat }.compact.to_h { |name, time| [name, RedlockAgent.duration(name, time)] }
    periods = { once_per: once_per, once: once }.compact.to_h { |name, time| [name, RedlockAgent.duration(name, time, 0.001)] }
    raise LockError, "concurrency #{concurrency}: want a whole number" unless concurrency.nil? || concurrency.is_a?(Integer)

    ask = { keys: keys.flatten.map { |key| RedlockAgent.text(key) }, label: label && RedlockAgent.text(label), concurrency: concurrency,
            values: values&.transform_values { |value| RedlockAgent.text(value) }, **times, **periods }.compact
    wait &&= RedlockAgent.duration(:wait, wait).to_f
    work ? Lock.new(self, ask).run(wait, once, &work) : Lock.new(self, ask).acquire(wait)
  end

  # Calls the block with the lock unless it has succeeded in this period, on any machine. Returns whether this call has.
  def once_per(key, period, **options)
    raise ArgumentError, "no block is given" unless block_given?

    begun = false
    lock(key, once_per: period, **options) { |lock| yield lock.tap { begun = true } }
    true
  rescue LockDone
    raise if begun # it is the block's

    false
  end

  # Returns what the block returns, as JSON has it, or has returned to whoever has called it within the time to keep; at most 64 KiB.
  def once(key, keep, **options)
    raise ArgumentError, "no block is given" unless block_given?

    begun = false
    lock(key, once: keep, **options) { |lock| yield lock.tap { begun = true } }
  rescue LockDone => e
    raise if begun # it is the block's

    begin
      JSON.parse(e.result) unless e.result.to_s.empty?
    rescue JSON::ParserError
      raise LockError.new("the remembered result of this key isn't JSON: another kind of client wrote it", e.result)
    end
  end

  def self.remembered(value)
    text = JSON.generate(value)
    raise LockNotRemembered.new("its result is longer than 64 KiB", value) if text.bytesize > 65_536

    text
  rescue JSON::JSONError, EncodingError => e
    raise LockNotRemembered.new("its result can't be written as JSON: #{e.message}", value)
  end

  def self.duration(name, time, least = 0)
    seconds = Float(time, exception: false)
    raise LockError, "#{name} #{time.inspect}: want a number of seconds" unless seconds&.finite?
    raise LockError, "#{name} #{time}: want at least #{least}" if seconds < least && least.positive?

    format("%.6fs", seconds)
  end

  def self.text(name)
    text = name.to_s.encode(Encoding::UTF_8)
    raise EncodingError unless text.valid_encoding?

    text
  rescue EncodingError
    raise LockError, "a key or label that isn't UTF-8"
  end

  def connect
    host, _, port = @address.rpartition(":")
    connection = @address.start_with?("/") ? UNIXSocket.new(@address) : Socket.tcp(host.delete("[]"), port.to_i, connect_timeout: @patience)
    CONNECTIONS[connection] = true
    connection
  end

  CONNECTIONS = {}.compare_by_identity # those that are open

  # Closes, in a child, its copies of the connections: a child that outlives this process would keep the locks.
  module CloseCopies
    def _fork # since Ruby 3.1
      super.tap { |pid| CONNECTIONS.each_key(&:close) if pid.zero? }
    end

    def daemon(*)
      super.tap { CONNECTIONS.each_key(&:close) }
    end
  end
  Process.singleton_class.prepend(CloseCopies)

  # Two clocks: the monotonic one stands still while a machine is suspended, and the other can be set.
  def self.clocks
    [Process.clock_gettime(Process::CLOCK_MONOTONIC), Process.clock_gettime(Process::CLOCK_REALTIME)]
  end

  # A lock while its block runs. fence is a number that is larger than those of all holders before, of the slot if there are several.
  #
  # A signal handler, or the exception of a time-out, may come between any two lines: so nothing here waits for a mutex.
  class Lock
    PATIENCE_AT_END = 5
    PATIENCE_WITH_READER = 1

    attr_reader :fence, :slot

    def initialize(agent, ask)
      @agent = agent
      @ask = ask
      @pid = Process.pid
      @word = ask.key?(:once_per) ? "done" : ("done " if ask.key?(:once)) # what ends a request whose work has succeeded
      @forgotten = "the agent has not confirmed it" # why no quorum of the masters remembers the work, or nil
      @end = [0, 0]
    end

    def initialize_copy(_)
      raise LockError, "a lock has no copy"
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
      error = release(failed, result, nil)
      raise error if error
    end

    # Takes the lock, runs the block, and releases the lock, wherever an exception comes from another thread.
    def run(wait, once)
      finished = raised = false # neither, if the block is left by break, throw, or the end of the thread
      begin
        acquire(wait, WeakRef.new(self)) # the lock of a Fiber or an Enumerator that nobody resumes any more ends with it
        value = yield self
        result = once && RedlockAgent.remembered(value)
        finished = true
        result ? JSON.parse(result) : value # to whoever asks first as to those that ask later
      rescue Exception # whatever it is, it is raised again
        raised = true
        raise
      ensure
        error = release(!finished, result, value)
        raise error if error && !raised
      end
    ensure
      close
    end

    # Takes the lock, and asks again while another agent may take the place of this one: for a moment nobody may listen. The thread that reads
    # then knows the lock as me.
    def acquire(wait, me = self)
      mine = (Thread.current[:redlock_agent] ||= []).keep_if(&:mine?) # of this fiber
      if @ask.fetch(:concurrency, 1) == 1 && mine.any? { |lock| lock.own?(@agent, locks) }
        raise LockError, "this thread holds the lock itself, and would wait for itself: locks are not reentrant"
      end

      @began = RedlockAgent.clocks[0]
      limit = wait && @began + wait
      patient = 0 # until when another agent may come
      begin
        left = limit && [0, limit - RedlockAgent.clocks[0]].max
        ask(left)
      rescue LockUnavailable => e
        now = RedlockAgent.clocks[0]
        patient = limit || now + @agent.patience if e.seen == :agent || (e.seen && patient.zero?)
        raise if left&.zero? || now >= patient

        tell_wait
        sleep [e.retry_after, left].compact.min
        retry
      end
      mine << self
      @reader = Lock.reader(@connection, me)
      self
    rescue Exception # also one from another thread
      close
      raise
    end

    # Whether the lock is held, or may be: what isn't certain now may be certain again.
    def mine?
      held? || (@lost.nil? && Process.pid == @pid)
    end

    # Whether the lock is that agent's, on one of the keys.
    def own?(agent, others)
      agent.equal?(@agent) && (others & locks).any?
    end

    # What keys have in common that share a lock: they differ in the case of ASCII letters alone. Templates have their values behind them.
    def locks
      @ask[:keys].map { |key| "#{key}#{@ask[:values]}".b.downcase(:ascii) }
    end

    # Returns a thread that reads until the last line, or until the lock is no more to which a WeakRef refers.
    def self.reader(connection, lock)
      Thread.new do
        nil while connection.wait_readable && lock.read
      rescue WeakRef::RefError, SystemCallError, IOError
        nil # of a connection that was closed
      ensure
        close(connection)
      end
    end

    # Takes the lines that have come. Returns whether there will be more. An end that this side didn't ask for is a loss, whoever has asked for it.
    def read
      line = take
      line = take while @text.include?("\n")
      return true unless line.key?("released") || line.key?("lost")

      @lost ||= "somebody else has ended it"
      false
    rescue SystemCallError, IOError, JSON::ParserError, KeyError, TypeError => e
      @lost ||= "the connection to the agent has ended: #{e.message}"
      false
    end

    # Closes a connection also if a child has a copy of it.
    def self.close(connection)
      connection.shutdown
    rescue SystemCallError, IOError
      nil # it has ended already
    ensure
      CONNECTIONS.delete(connection)
      connection.close
    end

    private

    # Returns why the lock isn't certain now, or nil.
    def doubt
      return "the lock belongs to the process that took it, and not to its child" if Process.pid != @pid

      catch_up unless @lost || certain?
      @lost || (certain? ? nil : "the agent has not said in time that the lock is still held")
    end

    def certain?
      @lost.nil? && RedlockAgent.clocks.zip(@end).all? { |now, limit| now < limit }
    end

    # Lets the thread read what has arrived, which a program that was busy hasn't let it.
    def catch_up
      limit = RedlockAgent.clocks[0] + PATIENCE_WITH_READER
      sleep 0.001 until certain? || (@reader.stop? && !@connection.wait_readable(0)) || RedlockAgent.clocks[0] > limit
    rescue SystemCallError, IOError
      nil # it is closed
    end

    # Releases the lock, in the process that took it, and returns the error that says what went wrong, or nil.
    def release(failed, result, value)
      return LockLost.new(doubt) if Process.pid != @pid
      return @outcome if @asked || @reader.nil? # once more, perhaps in a signal handler meanwhile

      reason = doubt
      begin
        @asked = true
        word = "#{@word}#{result}" if @word && !failed
        say_end(word) unless reason # of a lock that is lost, nobody waits for an answer
      ensure
        close
      end
      reason ||= "the lock had ended before the end of the work" if @released == false
      @outcome = reason ? LockLost.new(reason) : (LockNotRemembered.new(@forgotten, value) if word && @forgotten)
    end

    def say_end(word)
      @lost ||= "it was released"
      sleep 0.001 while @marking # which must not follow the end of the request's body
      @connection.write("#{word.bytesize.to_s(16)}\r\n#{word}\r\n") if word
      @connection.write("0\r\n\r\n")
      @reader.join(PATIENCE_AT_END)
    rescue SystemCallError, IOError
      nil # the lock is free when the connection is closed
    end

    def close
      @lost ||= "it was released"
      Process.pid == @pid ? Lock.close(@connection) : @connection.close if @connection
    end

    # Asks the agent once.
    def ask(left)
      @sent = { 0 => RedlockAgent.clocks }
      @mark = @base = 0 # the newest that was sent, and the one that the newest line answers
      @text = "".b
      @seen = @lost = nil
      begin
        @connection = @agent.connect
      rescue SystemCallError, SocketError, IOError => e
        rights = ": the agent's --socket-group and --socket-mode say who may open the socket" if e.is_a?(Errno::EACCES)
        raise LockUnavailable, "no agent answers at #{@agent.address}: #{e.message}#{rights}"
      end
      @seen = :end
      request(left ? { **@ask, wait: RedlockAgent.duration(:wait, left) } : @ask)
    rescue SystemCallError, IOError => e
      raise LockUnavailable.new("the agent at #{@agent.address} has ended: #{e.message}", 1, @seen)
    rescue JSON::ParserError, KeyError, TypeError
      raise LockError, "something else than an agent of version 1 answers at #{@agent.address}"
    ensure
      close unless @fence
    end

    def request(ask)
      body = "#{JSON.generate({ **ask, pulse: RedlockAgent.duration(:patience, (@agent.patience / 3.0).clamp(0.01, 5)) })}\n"
      token = @agent.token ? "Authorization: Bearer #{@agent.token}\r\n" : ""
      @connection.write("POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nRedlock-Agent: 1\r\nContent-Type: application/json\r\n#{token}" \
                        "Transfer-Encoding: chunked\r\n\r\n#{body.bytesize.to_s(16)}\r\n#{body}\r\n")
      status, header = head
      while status == "102" # of an agent that lives, and has no lock yet
        @seen = :agent
        tell_wait
        status, header = head
      end
      require_ok(status, header)
      first = take_soon
      take_soon until certain? # after a wait of many minutes, only the answer to the mark is new enough
      @slot = first.fetch("slot", 0)
      @fence = first.fetch("fence")
    end

    # Says once that the wait is long.
    def tell_wait
      return if @told || RedlockAgent.clocks[0] - @began < 10

      @told = true
      warn "still waiting for a lock after 10 s#{" (#{@ask[:label]})" if @ask[:label]}"
    end

    def take_soon
      await_agent unless @text.include?("\n")
      take
    end

    def await_agent
      raise LockError, "the agent at #{@agent.address} does not answer in time" unless @connection.wait_readable(@agent.patience)
    end

    def head
      await_agent
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
      raise LockDone.new(text, problem["result"], problem["retry_after"]) if outcome == "done"
      raise LockUnavailable.new("#{status}: #{text}", after, (:agent if status == "503")) if status == "503" || outcome == "no_quorum"

      raise LockError, "#{status}: #{text}"
    end

    # Takes the next line. One that answers no new mark is answered with one: so the lines never count from long ago.
    def take
      line = JSON.parse(next_line)
      if line.key?("valid_ms")
        valid = line["valid_ms"] / 1000.0
        @end = @sent.fetch(line["mark"]).map { |clock| clock + valid * 0.99 }
        if line["mark"] > @base
          @base = line["mark"]
          @sent.delete_if { |mark, _| mark < @base }
        elsif @mark == @base
          send_mark
        end
      end
      @lost = line["detail"] || line["lost"] if line.key?("lost")
      @released, @forgotten = line["released"], (line["detail"] if line["forgotten"]) if line.key?("released")
      line
    end

    def send_mark
      @marking = true # before it looks: the end waits for that
      return if @asked

      @sent[@mark += 1] = RedlockAgent.clocks
      @connection.write("1\r\n\n\r\n")
    ensure
      @marking = false
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
  end
end
