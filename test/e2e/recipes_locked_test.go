package e2e

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ofLocked has what stands around the programs of examples/locked, and what runs them.
var ofLocked = map[string]struct {
	file, around string
	command      []string
}{
	"express": {"express.js", `const app = require("express")()
PROGRAM
app.post("/orders/:id/pay", (req, res) => res.send("paid " + req.params.id))
app.listen(PORT, "127.0.0.1")`, []string{"node", "FILE"}},
	"flask": {"flask.py", `import json
from flask import Flask, abort, request
app = Flask(__name__)
PROGRAM
app.add_url_rule("/orders/<id>/pay", "pay", lambda id: "paid " + id, methods=["POST"])
app.run("127.0.0.1", PORT)`, []string{"/usr/bin/python3", "FILE"}},
	"rails": {"rails.rb", `require 'logger'
require 'action_controller/railtie'
class Upstream < Rails::Application
  config.load_defaults 6.1
  config.secret_key_base = 'x' * 64
  config.eager_load = false
  config.logger = Logger.new($stderr)
  config.hosts.clear
  routes.append { post '/orders/:id/pay', to: 'orders#pay' }
end
class OrdersController < ActionController::API
PROGRAM
  def pay = render(plain: 'paid ' + params[:id])
end
run Upstream.initialize!`, []string{"rackup", "-q", "-s", "puma", "-o", "127.0.0.1", "-p", "PORT", "FILE"}},
	"php": {"locked.php", `<?php
$order = (object) ['id' => explode('/', $_SERVER['REQUEST_URI'])[2]];
?>
PROGRAM
echo 'paid ' . $order->id;`, []string{"php", "-S", "127.0.0.1:PORT", "FILE"}},
}

// TestUpstreamSeesWhatIsLocked: the programs of examples/locked serve what is locked, and nothing else.
func TestUpstreamSeesWhatIsLocked(t *testing.T) {
	for _, name := range needUpstreams(t) {
		program, ok := ofLocked[name]
		if !ok {
			continue
		}
		t.Run(name, func(t *testing.T) {
			addr := freeAddr(t)
			_, port, _ := net.SplitHostPort(addr)
			file := filepath.Join(t.TempDir(), "program.ru") // rackup asks for this suffix
			replace := strings.NewReplacer("PROGRAM", example(t, "locked/"+program.file), "PORT", port, "FILE", file)
			if err := os.WriteFile(file, []byte(replace.Replace(program.around)), 0o600); err != nil {
				t.Fatal(err)
			}
			command := slices.Clone(program.command)
			for i, arg := range command {
				command[i] = replace.Replace(arg)
			}
			cmd := exec.Command(command[0], command[1:]...)
			inUpstreams(t, cmd, name)
			startProgram(t, name, cmd, addr)
			c := runCaddy(t, caddyfile("", "redlock order:{path.1:int} {\nkey_header Redlock-Key\n}\nreverse_proxy "+addr))
			if a := post(t, c.url+"/orders/42/pay"); a.status != http.StatusOK || strings.TrimSpace(a.body) != "paid 42" {
				t.Errorf("what is locked: %d %s", a.status, a.body)
			}
			for _, header := range [][]string{nil, {"Redlock-Key", `{"path.1":["43"]}`}, {"Redlock-Key", `{"path.2":["42"]}`}} {
				if a := post(t, "http://"+addr+"/orders/42/pay", header...); a.status != http.StatusBadRequest || strings.Contains(a.body, "paid") {
					t.Errorf("beside %q: %d %s", header, a.status, a.body)
				}
			}
		})
	}
}
