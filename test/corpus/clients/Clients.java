// Sends the cases as Java's clients write them: java Clients.java <library> <address> <file of cases>
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

public class Clients {
    private static final HttpClient client = HttpClient.newHttpClient();

    public static void main(String[] args) throws Exception {
        for (String line : Files.readAllLines(Path.of(args[2]))) {
            String[] c = line.split("\t");
            String path = "/" + c[0] + "/" + c[1], id = c[2], text = c[3], url = c[4];
            String fields = form("name", text, "id", id, "url", url, "page", "2"), nested = form("order[name]", text, "order[id]", id, "order[items][0][id]", "7", "utf8", "✓");
            String json = "{\"name\": " + quoted(text) + ", \"id\": " + (id.matches("\\d{1,15}") ? id : quoted(id)) + ", \"url\": " + quoted(url) + ", \"items\": [{\"id\": 7}]}";
            String formType = "application/x-www-form-urlencoded", jsonType = "application/json";
            switch (c[0]) {
                case "query": send(args, path + "?" + fields, null, Map.of()); break;
                case "nested-query": send(args, path + "?" + nested, null, Map.of()); break;
                case "form": send(args, path, fields, Map.of("Content-Type", formType)); break;
                case "nested-form": send(args, path, nested, Map.of("Content-Type", formType + ";charset=UTF-8")); break;
                case "json": send(args, path, json, Map.of("Content-Type", jsonType)); break;
                case "cookie": send(args, path, null, Map.of("Cookie", "theme=dark; cart_id=" + form(id).substring(1) + "; seen=" + form(text).substring(1))); break;
                case "header": send(args, path, json, Map.of("Content-Type", jsonType + "; charset=utf-8", "X-Order", id)); break;
                default: send(args, new URI(null, null, path + "/" + id, null).toASCIIString() + "?" + fields, "", Map.of());
            }
        }
    }

    private static String form(String... pairs) {
        StringBuilder form = new StringBuilder();
        for (int i = 0; i < pairs.length; i++) {
            form.append(i == 0 ? "" : i % 2 == 1 ? "=" : "&").append(URLEncoder.encode(pairs[i], StandardCharsets.UTF_8));
        }
        return pairs.length == 1 ? "=" + form : form.toString();
    }

    private static String quoted(String text) {
        return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }

    private static void send(String[] args, String target, String body, Map<String, String> headers) throws Exception {
        if (args[0].equals("http-client")) {
            HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(args[1] + target));
            headers.forEach(request::header);
            client.send(body == null ? request.build() : request.POST(HttpRequest.BodyPublishers.ofString(body)).build(), HttpResponse.BodyHandlers.ofString());
            return;
        }
        HttpURLConnection connection = (HttpURLConnection) new URI(args[1] + target).toURL().openConnection();
        headers.forEach(connection::setRequestProperty);
        if (body != null) {
            connection.setDoOutput(true);
            connection.getOutputStream().write(body.getBytes(StandardCharsets.UTF_8));
        }
        connection.getInputStream().readAllBytes();
    }
}
