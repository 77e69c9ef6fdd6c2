# Sends the cases as Ruby's clients write them: ruby clients.rb <library> <address> <file of cases>
require 'json'
require 'net/http'
require 'rack'

LIBRARY, BASE, FILE = ARGV
JSON_TYPE = { 'Content-Type' => 'application/json' }.freeze
FORM_TYPE = { 'Content-Type' => 'application/x-www-form-urlencoded' }.freeze

SEND = case LIBRARY
       when 'net-http'
         lambda do |method, url, body, headers|
           uri = URI(url)
           request = (method == :get ? Net::HTTP::Get : Net::HTTP::Post).new(uri, headers)
           request.body = body if body
           Net::HTTP.start(uri.host, uri.port) { |http| http.request(request) }
         end
       when 'faraday'
         require 'faraday'
         ->(method, url, body, headers) { method == :get ? Faraday.get(url, nil, headers) : Faraday.post(url, body, headers) }
       when 'httparty'
         require 'httparty'
         ->(method, url, body, headers) { HTTParty.send(method, url, { headers: headers, body: body }.compact) }
       when 'rest-client'
         require 'rest-client'
         ->(method, url, body, headers) { method == :get ? RestClient.get(url, headers) : RestClient.post(url, body || '', headers) }
       when 'httpclient'
         require 'httpclient'
         client = HTTPClient.new
         ->(method, url, body, headers) { client.request(method, url, nil, body, headers) }
       when 'excon'
         require 'excon'
         ->(method, url, body, headers) { Excon.send(method, url, { headers: headers, body: body }.compact) }
       when 'typhoeus'
         require 'typhoeus'
         ->(method, url, body, headers) { Typhoeus.send(method, url, { headers: headers, body: body }.compact) }
       end

File.foreach(FILE, chomp: true, encoding: 'UTF-8') do |line|
  format, n, id, text, url = line.split("\t")
  to = "#{BASE}/#{format}/#{n}"
  fields = { name: text, id: id, url: url, page: 2, tags: ['a', 'b c'] }
  nested = { 'order' => { 'name' => text, 'id' => id, 'items' => [{ 'id' => '7' }] }, 'utf8' => '✓' }
  case format
  when 'query' then SEND.call(:get, "#{to}?#{URI.encode_www_form(fields)}", nil, {})
  when 'nested-query' then SEND.call(:get, "#{to}?#{Rack::Utils.build_nested_query(nested)}", nil, {})
  when 'form' then SEND.call(:post, to, URI.encode_www_form(fields), FORM_TYPE)
  when 'nested-form' then SEND.call(:post, to, Rack::Utils.build_nested_query(nested), FORM_TYPE)
  when 'json'
    SEND.call(:post, to, { name: text, id: id.match?(/\A\d{1,15}\z/) ? id.to_i : id, url: url, items: [{ id: 7, price: 12.5 }], ok: true, none: nil }.to_json, JSON_TYPE)
  when 'cookie' then SEND.call(:get, to, nil, { 'Cookie' => "theme=dark; cart_id=#{Rack::Utils.escape(id)}; seen=#{Rack::Utils.escape(text)}" })
  when 'header' then SEND.call(:post, to, { name: text }.to_json, JSON_TYPE.merge('X-Order' => id))
  else SEND.call(:post, "#{to}/#{Rack::Utils.escape_path(id)}?#{URI.encode_www_form(fields)}", nil, {})
  end
end
