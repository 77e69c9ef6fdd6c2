Gem::Specification.new do |spec|
  spec.name = "redlock-agent"
  spec.version = "0.1.0"
  spec.summary = "Locks of redlock agent, on a majority of independent Redis masters"
  spec.authors = ["The authors of caddy-redlock"]
  spec.license = "Apache-2.0"
  spec.homepage = "https://github.com/caddy-redlock/caddy-redlock"
  spec.required_ruby_version = ">= 3.0"
  spec.files = ["redlock_agent.rb"]
  spec.require_paths = ["."]
end
