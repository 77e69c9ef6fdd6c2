# Rails: in the controller
before_action do
  values = JSON.parse(request.headers["Redlock-Key"] || "{}").fetch("path.1", [])
  head :bad_request unless request.headers["Fencing-Token"] && values.include?(params[:id].to_s)
end
