# What Rack, Sinatra, Grape and Rails read of a request: FRAMEWORK=rack rackup -s webrick rack.ru
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
elsif ENV['FRAMEWORK'] == 'grape'
  require 'grape'
  class Upstream < Grape::API
    content_type :json, 'application/json'
    content_type :form, 'application/x-www-form-urlencoded'
    content_type :api, 'application/vnd.api+json'
    parser :api, Grape::Parser::Json
    default_format :json
    rescue_from(:all) { error!('{}', 400) }
    answer = proc do
      status 200
      env['api.format'] = :json
      both = Upstreams.at(params, 'id')
      path = request.path_info.start_with?('/orders/') ? both : nil
      JSON.parse(Upstreams.readings(Rack::Request.new(env), path)).merge('both' => path ? nil : both)
    end
    get('/orders/:id/pay', &answer)
    post('/orders/:id/pay', &answer)
    get('*any', &answer)
    post('*any', &answer)
  end
  run Upstream
elsif ENV['FRAMEWORK'] == 'rails'
  require 'logger'
  require 'action_controller/railtie'
  class Upstream < Rails::Application
    config.load_defaults 6.1
    config.secret_key_base = 'x' * 64
    config.eager_load = false
    config.logger = Logger.new($stderr)
    config.log_level = :fatal
    config.hosts.clear
    routes.append do
      match '/orders/:id/pay', to: 'answer#answer', via: :all
      match '/(*any)', to: 'answer#answer', via: :all
    end
  end
  class AnswerController < ActionController::Base
    self.allow_forgery_protection = false
    wrap_parameters false
    rescue_from(StandardError) { render json: {}, status: 400 }
    def answer
      json = request.media_type.to_s.include?('json')
      form = json ? {} : request.request_parameters
      render json: {
        query: Upstreams.at(request.query_parameters, 'id'), query_nested: Upstreams.at(request.query_parameters, 'order', 'id'),
        form: Upstreams.at(form, 'id'), form_nested: Upstreams.at(form, 'order', 'id'),
        json: json ? Upstreams.at(request.request_parameters, 'id') : Upstreams.json_id(request.raw_post),
        cookie: cookies['cart_id'], header: request.headers['X-Customer'], path: request.path_parameters[:id]
      }
    end
  end
  Upstream.initialize!
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
