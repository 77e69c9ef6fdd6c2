// Sends requests on 42 as Java's own client writes them: java -cp … Clients.java <addresses by format, as JSON>
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.net.CookieManager;
import java.net.HttpCookie;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;

public class Clients {
    private static final ObjectMapper json = new ObjectMapper();
    private static final CookieManager cookies = new CookieManager();
    private static final HttpClient client = HttpClient.newBuilder().cookieHandler(cookies).build();
    private static JsonNode to;

    private static String pairs(String... pairs) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < pairs.length; i++) {
            text.append(i == 0 ? "" : i % 2 == 0 ? "&" : "=").append(URLEncoder.encode(pairs[i], StandardCharsets.UTF_8));
        }
        return text.toString();
    }

    private static void send(String format, String path, String type, String body, String... headers) throws Exception {
        var request = HttpRequest.newBuilder(URI.create("http://" + to.get(format).asText() + path));
        if (body != null) {
            request.POST(BodyPublishers.ofString(body)).header("Content-Type", type);
        }
        for (int i = 0; i < headers.length; i += 2) {
            request.header(headers[i], headers[i + 1]);
        }
        client.send(request.build(), BodyHandlers.discarding());
    }

    public static void main(String[] args) throws Exception {
        to = json.readTree(args[0]);
        String form = "application/x-www-form-urlencoded";
        send("query", "/x?" + pairs("id", "42", "q", "ü & [id]=1 #", "page", "2"), null, null);
        send("nested query", "/x?" + pairs("order.id", "42", "order.name", "x"), null, null);
        send("form", "/x", form, pairs("id", "42", "name", "Jürgen & Söhne; \"x\"", "url", "https://x.example/?id=9"));
        send("nested form", "/x", form, pairs("order.id", "42", "order.items[0].id", "7"));
        send("json", "/x", "application/json", json.createObjectNode().put("id", 42).put("name", "ü").put("url", "https://x.example/?a=1").toString());
        HttpCookie cookie = new HttpCookie("cart_id", "42");
        cookie.setPath("/");
        cookie.setVersion(0);
        cookies.getCookieStore().add(URI.create("http://" + to.get("cookie").asText()), cookie);
        send("cookie", "/x", null, null);
        cookies.getCookieStore().removeAll();
        send("header", "/x", null, null, "X-Customer", "42");
        send("path", "/orders/42/pay", form, "");
    }
}
