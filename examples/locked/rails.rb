# Rails
before_action { head :bad_request unless JSON.parse(request.headers["Redlock-Key"] || "{}").fetch("path.1", []).include?(params[:id].to_s) }
