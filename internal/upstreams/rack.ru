# What Rack and Sinatra read of a request: FRAMEWORK=rack rackup -s webrick rack.ru
require 'json'

module Upstreams
  module_function

  def scalars(value)
    case value
    when nil, Hash then nil
    when Array then value.map { |v| scalars(v) }
    else value.to_s
    end
  end

  def at(value, *names)
    scalars(names.reduce(value) { |v, name| v.is_a?(Hash) ? v[name] : nil })
  end

  def json_id(body)
    at(JSON.parse(body), 'id')
  rescue JSON::ParserError, EncodingError
    nil
  end

  def readings(request, path)
    body = request.body.read
    request.body.rewind
    form = request.form_data? ? request.POST : {}
    { query: at(request.GET, 'id'), query_nested: at(request.GET, 'order', 'id'), form: at(form, 'id'), form_nested: at(form, 'order', 'id'),
      both: at(request.params, 'id'), json: json_id(body), cookie: request.cookies['cart_id'],
      header: request.get_header('HTTP_X_CUSTOMER'), path: path }.to_json
  end
end

if ENV['FRAMEWORK'] == 'sinatra'
  require 'sinatra/base'
  class Upstream < Sinatra::Base
    disable :protection, :logging, :show_exceptions
    answer = proc { content_type :json; Upstreams.readings(request, request.path_info.start_with?('/orders/') ? params['id'] : nil) }
    get('/orders/:id/pay', &answer)
    post('/orders/:id/pay', &answer)
    get('*', &answer)
    post('*', &answer)
  end
  run Upstream
else
  run lambda { |env|
    begin
      [200, { 'Content-Type' => 'application/json' }, [Upstreams.readings(Rack::Request.new(env), nil)]]
    rescue StandardError
      [400, {}, ['{}']]
    end
  }
end
