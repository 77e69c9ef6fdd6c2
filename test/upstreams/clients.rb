# Sends requests on 42 as Ruby's and Rack's own clients write them: ruby clients.rb <addresses by format, as JSON>
require 'json'
require 'net/http'
require 'rack'

TO = JSON.parse(ARGV[0])

def send_to(format, path = '/x', type = Net::HTTP::Get, headers = {})
  host, port = TO[format].split(':')
  request = type.new(path, headers)
  yield request if block_given?
  Net::HTTP.start(host, port) { |http| http.request(request) }
end

nested = Rack::Utils.build_nested_query('order' => { 'id' => '42', 'items' => [{ 'id' => '7' }] }, 'utf8' => '✓')
form = { 'Content-Type' => 'application/x-www-form-urlencoded' }
send_to('query', '/x?' + URI.encode_www_form(id: 42, q: 'ü & [id]=1 #', page: 2))
send_to('nested query', '/x?' + Rack::Utils.build_nested_query('order' => { 'id' => '42', 'name' => 'x' }))
send_to('form', '/x', Net::HTTP::Post) { |r| r.set_form_data(id: 42, name: 'Jürgen & Söhne; "x"', url: 'https://x.example/?id=9') }
send_to('nested form', '/x', Net::HTTP::Post, form) { |r| r.body = nested }
send_to('json', '/x', Net::HTTP::Post, 'Content-Type' => 'application/json') { |r| r.body = { id: 42, name: 'ü', url: 'https://x.example/?a=1' }.to_json }
send_to('cookie', '/x', Net::HTTP::Get, 'Cookie' => 'theme=dark; cart_id=42; mail=a%40b.example')
send_to('header', '/x', Net::HTTP::Get, 'X-Customer' => '42')
send_to('path', '/orders/42/pay', Net::HTTP::Post, form) { |r| r.body = '' }
