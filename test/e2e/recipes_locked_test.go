package e2e

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// ofLocked has what stands around the programs of examples/locked, by the upstream that they run in, and what runs them.
var ofLocked = map[string]struct {
	file, around, command string
}{
	"express": {"express.js", `const app = require("express")()
PROGRAM
app.post("/orders/:id/pay", locked, (req, res) => res.send("paid " + req.params.id))
app.listen(PORT, "127.0.0.1")`, "node DIR/upstream.js"},
	"flask": {"flask.py", `import json
from functools import wraps
from flask import Flask, abort, request
app = Flask(__name__)
PROGRAM
@app.post("/orders/<id>/pay")
@locked
def pay(id):
    return "paid " + id
app.run("127.0.0.1", PORT)`, "/usr/bin/python3 DIR/upstream.py"},
	"django": {"django.py", `import json
from functools import wraps
from wsgiref.simple_server import make_server
import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, HttpResponseBadRequest
from django.urls import path
settings.configure(SECRET_KEY="x", ALLOWED_HOSTS=["*"], ROOT_URLCONF="__main__", LOGGING_CONFIG=None)
PROGRAM
@locked
def pay(request, id):
    return HttpResponse("paid %d" % id)
urlpatterns = [path("orders/<int:id>/pay", pay)]
django.setup()
make_server("127.0.0.1", PORT, get_wsgi_application()).serve_forever()`, "/usr/bin/python3 DIR/upstream.py"},
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
run Upstream.initialize!`, "rackup -q -s puma -o 127.0.0.1 -p PORT DIR/upstream.ru"},
	"rack": {"rack.rb", `require 'json'
PROGRAM
run lambda { |env|
  id = env['PATH_INFO'].split('/')[2]
  locked?(env, id) ? [200, {}, ['paid ' + id]] : [400, {}, []]
}`, "rackup -q -s webrick -o 127.0.0.1 -p PORT DIR/upstream.ru"},
	"php": {"php.php", `<?php
$order = (object) ['id' => explode('/', $_SERVER['REQUEST_URI'])[2]];
?>
PROGRAM
echo 'paid ' . $order->id;`, "php -S 127.0.0.1:PORT DIR/upstream.php"},
	"symfony": {"symfony.php", `<?php
require 'Symfony/Bundle/FrameworkBundle/autoload.php';
use Symfony\Bundle\FrameworkBundle\{FrameworkBundle, Kernel\MicroKernelTrait};
use Symfony\Component\DependencyInjection\Loader\Configurator\ContainerConfigurator;
use Symfony\Component\HttpFoundation\{Request, Response};
use Symfony\Component\HttpKernel\{Exception\BadRequestHttpException, Kernel};
use Symfony\Component\Routing\Loader\Configurator\RoutingConfigurator;
class Upstream extends Kernel
{
    use MicroKernelTrait;
    public function registerBundles(): iterable { return [new FrameworkBundle()]; }
    public function getProjectDir(): string { return 'DIR'; }
    private function configureContainer(ContainerConfigurator $container): void { $container->extension('framework', ['secret' => 'x']); }
    private function configureRoutes(RoutingConfigurator $routes): void { $routes->add('pay', '/orders/{id}/pay')->controller([$this, 'pay']); }
    public function pay(Request $request, int $id): Response
    {
        $order = (object) ['id' => $id];
PROGRAM
        return new Response("paid $order->id");
    }
}
(new Upstream('prod', false))->handle(Request::createFromGlobals())->send();`, "php -S 127.0.0.1:PORT DIR/upstream.php"},
	"laravel": {"laravel.php", `<?php
require 'Illuminate/autoload.php';
use Illuminate\{Database\Eloquent\Model, Http\Request, Routing\Middleware\SubstituteBindings, Support\Facades\Route};
PROGRAM
class Order extends Model
{
    public function resolveRouteBinding($value, $field = null) { return $this->forceFill(['id' => (int) $value]); }
}
$_SERVER += ['SITE' => 'DIR', 'APP_CONFIG_CACHE' => 'CONFIG', 'APP_PACKAGES_CACHE' => 'DIR/packages.php', 'APP_SERVICES_CACHE' => 'DIR/services.php'];
$app = new Illuminate\Foundation\Application('DIR');
$app->singleton(Illuminate\Contracts\Debug\ExceptionHandler::class, Illuminate\Foundation\Exceptions\Handler::class);
$kernel = $app->make(Illuminate\Foundation\Http\Kernel::class);
$kernel->bootstrap();
Route::middleware(SubstituteBindings::class)->any('/orders/{order}/pay', fn (Order $order) => "paid $order->id")->middleware(Locked::class . ':order');
$kernel->handle(Request::capture())->send();`, "php -S 127.0.0.1:PORT DIR/upstream.php"},
	"tomcat": {"Locked.java", `import com.fasterxml.jackson.databind.ObjectMapper;
import jakarta.servlet.*;
import jakarta.servlet.http.*;
import java.io.IOException;
import java.util.*;
public class Upstream extends HttpServlet {
    public static void main(String[] args) throws Exception {
        var tomcat = new org.apache.catalina.startup.Tomcat();
        tomcat.setBaseDir("DIR");
        tomcat.setPort(PORT);
        tomcat.getConnector().setProperty("address", "127.0.0.1");
        var context = tomcat.addContext("", null);
        org.apache.catalina.startup.Tomcat.addServlet(context, "pay", new Upstream());
        context.addServletMappingDecoded("/orders/*", "pay");
        context.addServletContainerInitializer((classes, servlets) -> Locked.before(servlets, "pay"), null);
        tomcat.start();
        tomcat.getServer().await();
    }
    protected void service(HttpServletRequest request, HttpServletResponse response) throws IOException {
        response.getWriter().print("paid " + request.getPathInfo().split("/")[1]);
    }
}
PROGRAM`, "java -XX:TieredStopAtLevel=1 -cp " + strings.Join(tomcatJars, ":") + " DIR/Upstream.java"},
}

// TestUpstreamSeesWhatIsLocked: the programs of examples/locked serve what is locked, and nothing else.
func TestUpstreamSeesWhatIsLocked(t *testing.T) {
	config, err := filepath.Abs("testdata/laravel/config.php")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range needUpstreams(t, "laravel") {
		program, ok := ofLocked[name]
		if !ok {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat("/usr/share/php/Illuminate/Foundation/Application.php"); name == "laravel" && err != nil {
				t.Skip("NOT TESTED: the packages of this system have no Laravel (php-laravel-framework)")
			}
			addr, dir := freeAddr(t), t.TempDir()
			_, port, _ := net.SplitHostPort(addr)
			replace := strings.NewReplacer("PROGRAM", example(t, "locked/"+program.file), "PORT", port, "DIR", dir, "'CONFIG'", "'"+config+"'")
			command := strings.Fields(replace.Replace(program.command))
			if err := os.WriteFile(command[len(command)-1], []byte(replace.Replace(program.around)), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(command[0], command[1:]...)
			inUpstreams(t, cmd, name)
			startProgram(t, name, cmd, addr)
			c := runCaddy(t, caddyfile("", "redlock /orders/*/pay order:{path.1:int} {\nkey_header Redlock-Key\n}\nreverse_proxy "+addr))
			if a := post(t, c.url+"/orders/42/pay"); a.status != http.StatusOK || strings.TrimSpace(a.body) != "paid 42" {
				t.Errorf("what is locked: %d %s", a.status, a.body)
			}
			token, key := []string{"Fencing-Token", "1"}, []string{"Redlock-Key", `{"path.1":["42"]}`}
			if a := post(t, c.url+"/orders/42/pay/", append(token, key...)...); strings.Contains(a.body, "paid") { // which the matcher misses
				t.Errorf("with forged headers: %d %s", a.status, a.body)
			}
			for _, headers := range [][]string{nil, token, key, append(token, "Redlock-Key", `{"path.1":["43"]}`), append(token, "Redlock-Key", `{"path.2":["42"]}`)} {
				if a := post(t, "http://"+addr+"/orders/42/pay", headers...); a.status != http.StatusBadRequest || strings.Contains(a.body, "paid") {
					t.Errorf("beside %q: %d %s", headers, a.status, a.body)
				}
			}
		})
	}
}
