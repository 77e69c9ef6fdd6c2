// What servlets on Jetty, and Spring's data binder, read of a request: java -cp … Jetty.java <framework> <port>
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import javax.servlet.http.Cookie;
import javax.servlet.http.HttpServletRequest;
import javax.servlet.http.HttpServletResponse;
import org.eclipse.jetty.server.Request;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.server.handler.AbstractHandler;
import org.springframework.web.bind.ServletRequestDataBinder;

public class Jetty extends AbstractHandler {
    public static class Order {
        private String id;

        public String getId() { return id; }

        public void setId(String id) { this.id = id; }
    }

    public static class Form extends Order {
        private Order order = new Order();

        public Order getOrder() { return order; }

        public void setOrder(Order order) { this.order = order; }
    }

    private final boolean spring;

    Jetty(boolean spring) { this.spring = spring; }

    public static void main(String[] args) throws Exception {
        System.setProperty("org.eclipse.jetty.LEVEL", "OFF");
        Server server = new Server();
        ServerConnector connector = new ServerConnector(server);
        connector.setHost("127.0.0.1");
        connector.setPort(Integer.parseInt(args[1]));
        server.addConnector(connector);
        server.setHandler(new Jetty(args[0].equals("spring")));
        server.start();
        server.join();
    }

    @Override
    public void handle(String target, Request base, HttpServletRequest request, HttpServletResponse response) throws IOException {
        base.setHandled(true);
        StringBuilder answer = new StringBuilder("{\"header\": ").append(quoted(request.getHeader("X-Customer")));
        if (spring) {
            Form form = new Form();
            try {
                new ServletRequestDataBinder(form).bind(request);
            } catch (RuntimeException e) { // a name that it can't read
                form = new Form();
            }
            String[] all = request.getParameterValues("id");
            add(answer, "both", all != null && all.length > 1 ? null : form.getId()); // of several it makes one text with commas
            add(answer, "query_nested", form.getOrder().getId());
            add(answer, "form_nested", form.getOrder().getId());
        } else {
            add(answer, "both", request.getParameter("id"));
            add(answer, "query_nested", request.getParameter("order.id"));
            add(answer, "form_nested", request.getParameter("order.id"));
        }
        if (request.getCookies() != null) {
            for (Cookie cookie : request.getCookies()) {
                if (cookie.getName().equals("cart_id")) {
                    add(answer, "cookie", cookie.getValue());
                    break;
                }
            }
        }
        String[] path = target.split("/");
        if (path.length == 4 && path[1].equals("orders") && path[3].equals("pay")) {
            add(answer, "path", path[2]);
        }
        byte[] body = answer.append("}").toString().getBytes(StandardCharsets.US_ASCII);
        response.setContentType("application/json");
        response.setContentLength(body.length);
        response.getOutputStream().write(body);
    }

    private static void add(StringBuilder answer, String name, String value) {
        answer.append(", \"").append(name).append("\": ").append(quoted(value));
    }

    private static String quoted(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            quoted.append(c < ' ' || c > '~' || c == '"' || c == '\\' ? String.format("\\u%04x", (int) c) : String.valueOf(c));
        }
        return quoted.append("\"").toString();
    }
}
