# Rack, Sinatra: halt 400 unless locked?(env, params[:id])
def locked?(env, id)
  values = JSON.parse(env["HTTP_REDLOCK_KEY"] || "{}").fetch("path.1", [])
  env.key?("HTTP_FENCING_TOKEN") && values.include?(id.to_s)
end
