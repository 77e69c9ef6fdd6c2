// What Tomcat's servlets, and Jackson, read of a request: java -cp … Tomcat.java <port>
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.nio.file.Files;
import java.util.logging.Level;
import java.util.logging.Logger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.catalina.Context;

public class Tomcat extends HttpServlet {
    private static final ObjectMapper json = new ObjectMapper();
    private static final Pattern path = Pattern.compile("/orders/([^/]+)/pay/?");

    public static void main(String[] args) throws Exception {
        Logger.getLogger("").setLevel(Level.WARNING);
        var tomcat = new org.apache.catalina.startup.Tomcat();
        tomcat.setBaseDir(Files.createTempDirectory("tomcat").toString());
        tomcat.setPort(Integer.parseInt(args[0]));
        tomcat.getConnector().setProperty("address", "127.0.0.1");
        for (String chars : new String[] {"relaxedQueryChars", "relaxedPathChars"}) { // as many have it, for browsers that send them
            tomcat.getConnector().setProperty(chars, "[]{}|\"<>^`\\");
        }
        Context context = tomcat.addContext("", null);
        org.apache.catalina.startup.Tomcat.addServlet(context, "answer", new Tomcat());
        context.addServletMappingDecoded("/*", "answer");
        tomcat.start();
        tomcat.getServer().await();
    }

    @Override
    protected void service(HttpServletRequest request, HttpServletResponse response) throws IOException {
        ObjectNode answer = json.createObjectNode();
        answer.put("both", request.getParameter("id"));
        answer.put("query_nested", request.getParameter("order.id"));
        answer.put("form_nested", request.getParameter("order.id"));
        answer.put("header", request.getHeader("X-Customer"));
        if (request.getCookies() != null) {
            for (Cookie cookie : request.getCookies()) {
                if (cookie.getName().equals("cart_id") && !answer.has("cookie")) {
                    answer.put("cookie", cookie.getValue());
                }
            }
        }
        Matcher matcher = path.matcher(request.getPathInfo() == null ? "" : request.getPathInfo());
        answer.put("path", matcher.matches() ? matcher.group(1) : null);
        try {
            JsonNode id = json.readTree(request.getInputStream()).get("id");
            answer.put("json", id == null || id.isContainerNode() || id.isNull() ? null : id.asText());
        } catch (IOException | RuntimeException e) {
            answer.putNull("json"); // none, or a form
        }
        response.setContentType("application/json");
        byte[] body = json.writeValueAsBytes(answer);
        response.setContentLength(body.length);
        response.getOutputStream().write(body);
    }
}
