package sdks_test

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/test/sdks"
)

// readModule reads a file of the senders' SDKs.
func readModule(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(sdks.Modules(t), file))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// startSDKs runs the server that verifies with the senders' own SDKs, and returns its address.
func startSDKs(t *testing.T) string {
	t.Helper()
	modules := sdks.Modules(t)
	cmd := exec.Command("node", "verdicts.js")
	cmd.Env = append(os.Environ(), "NODE_PATH="+modules)
	cmd.Stderr = t.Output()
	stdin, err := cmd.StdinPipe() // the server ends when it is closed
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	port, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the SDKs' server doesn't start: %v", err)
	}
	return net.JoinHostPort("127.0.0.1", strings.TrimSpace(port))
}

// signedBy returns the header lines with which an SDK signs a body.
func signedBy(t *testing.T, sdks, name, secret, body string) (lines []string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+sdks+"/"+url.PathEscape(name)+"/sign", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Test-Secrets", secret)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	headers := make(map[string]string)
	if err := json.Unmarshal(text, &headers); err != nil {
		t.Fatalf("%s signs with %d %s", name, response.StatusCode, text)
	}
	for header, value := range headers {
		lines = append(lines, header+": "+value)
	}
	slices.Sort(lines)
	return lines
}

// statusOf sends a request with exactly these header lines, and returns the status of the response.
func statusOf(t *testing.T, addr, name, secrets, body string, lines []string) int {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	text := "POST /" + name + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nTest-Secrets: " + secrets + "\r\n"
	for _, line := range lines {
		text += line + "\r\n"
	}
	if _, err := fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n%s", text, len(body), body); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// sender is a sender whose SDK decides what counts as signed.
type sender struct {
	sdk, scheme string
	secrets     [3]string // the last one belongs to somebody else
	timed       bool
	// sign signs with our own code; the time is given as it is to be written.
	sign func(secret, sent, body string) []string
}

var (
	hexSecrets   = [3]string{"44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056", "00FF", "11EE"}
	whsecSecrets = [3]string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_plJ3nmyCDGBKInavdOK15jsl", "whsec_d3Jvbmc="}
	textSecrets  = [3]string{"whsec_abc", "It's_another", "wrong"}
)

func standardLines(prefix string) func(secret, sent, body string) []string {
	return func(secret, sent, body string) []string {
		key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		return []string{prefix + "-Id: msg_1", prefix + "-Signature: v1," + base64.StdEncoding.EncodeToString(hmacOf(string(key), "msg_1."+sent+"."+body)), prefix + "-Timestamp: " + sent}
	}
}

var senders = []sender{
	{"stripe", "stripe", textSecrets, true, func(secret, sent, body string) []string {
		return []string{fmt.Sprintf("Stripe-Signature: t=%s,v1=%x", sent, hmacOf(secret, sent+"."+body))}
	}},
	{"github", "github", textSecrets, false, func(secret, _, body string) []string {
		return []string{fmt.Sprintf("X-Hub-Signature-256: sha256=%x", hmacOf(secret, body))}
	}},
	{"shopify", "shopify", textSecrets, false, func(secret, _, body string) []string {
		return []string{"X-Shopify-Hmac-Sha256: " + base64.StdEncoding.EncodeToString(hmacOf(secret, body))}
	}},
	{"slack", "slack", textSecrets, true, func(secret, sent, body string) []string {
		return []string{"X-Slack-Request-Timestamp: " + sent, fmt.Sprintf("X-Slack-Signature: v0=%x", hmacOf(secret, "v0:"+sent+":"+body))}
	}},
	{"standard-webhooks", "standard-webhooks", whsecSecrets, true, standardLines("Webhook")},
	{"svix", "standard-webhooks", whsecSecrets, true, standardLines("Svix")},
	{"svix", "standard-webhooks", whsecSecrets, true, standardLines("Webhook")},
	{"adyen", "adyen", hexSecrets, false, nil},
}

// TestSDKs sends the same requests to the senders' own SDKs and to us: both accept what the senders sign, and we accept nothing
// that an SDK refuses.
func TestSDKs(t *testing.T) {
	t.Parallel()
	sdks := startSDKs(t)
	for _, s := range senders {
		ours := make(map[string]string)
		addr := func(secrets string) string {
			if ours[secrets] == "" {
				ours[secrets] = serve(t, middleware.New(newLocker(t), "k", middleware.Rule{Verify: []middleware.Verify{{Scheme: s.scheme, Secrets: strings.Fields(secrets)}}})(http.HandlerFunc(ok))).Listener.Addr().String()
			}
			return ours[secrets]
		}
		var accepted, refused, stricter int
		compare := func(what, secrets, body string, lines []string) (byUs, bySDK bool) {
			t.Helper()
			if s.sdk == "shopify" { // its SDK needs all of them
				lines = append(slices.Clone(lines), "X-Shopify-Topic: orders/create", "X-Shopify-Shop-Domain: x.myshopify.com", "X-Shopify-API-Version: 2026-10", "X-Shopify-Webhook-Id: w1")
			}
			byUs = statusOf(t, addr(secrets), "", secrets, body, lines) == http.StatusOK
			bySDK = statusOf(t, sdks, s.sdk, secrets, body, lines) == http.StatusOK
			switch {
			case byUs && bySDK:
				accepted++
			case !byUs && !bySDK:
				refused++
			case bySDK:
				stricter++
			default:
				t.Errorf("%s, %s: accepted, and refused by the SDK: %q, %.100q", s.sdk, what, lines, body)
			}
			return byUs, bySDK
		}
		genuine := func(what, secrets, body string, lines []string) {
			t.Helper()
			if byUs, bySDK := compare(what, secrets, body, lines); !byUs || !bySDK {
				t.Errorf("%s, %s: accepted by us: %v, by the SDK: %v: %q", s.sdk, what, byUs, bySDK, lines)
			}
		}
		wrong := func(what, secrets, body string, lines []string) {
			t.Helper()
			if byUs, bySDK := compare(what, secrets, body, lines); byUs || bySDK {
				t.Errorf("%s, %s: accepted by us: %v, by the SDK: %v: %q", s.sdk, what, byUs, bySDK, lines)
			}
		}
		first, second, other := s.secrets[0], s.secrets[1], s.secrets[2]
		both := first + " " + second
		for _, body := range []string{`{}`, `{"id":"evt_1","text":"Jürgen 😀 \u00e4","n":1.50}`, "{\n \"x\": \"" + strings.Repeat("x", 200_000) + "\"\n}\n"} {
			lines := signedBy(t, sdks, s.sdk, first, body)
			genuine("valid", first, body, lines)
			genuine("rotated, the new one", both, body, lines)
			genuine("rotated, the old one", both, body, signedBy(t, sdks, s.sdk, second, body))
			wrong("of another", both, body, signedBy(t, sdks, s.sdk, other, body))
			wrong("tampered body", first, strings.Replace(body, "{", "{ ", 1), lines)
			wrong("bytes behind it", first, body+" ", lines)
			wrong("without body", first, "", lines)
			for i := range lines {
				wrong("missing", first, body, slices.Delete(slices.Clone(lines), i, i+1))
				name, value, _ := strings.Cut(lines[i], ": ")
				wrong("empty", first, body, slices.Replace(slices.Clone(lines), i, i+1, name+":"))
				compare("doubled", first, body, append(slices.Clone(lines), lines[i]))
				compare("doubled with another", first, body, append(slices.Clone(lines), name+": x"))
				compare("doubled behind another", first, body, append([]string{name + ": x"}, lines...))
				compare("in capitals", first, body, slices.Replace(slices.Clone(lines), i, i+1, name+": "+strings.ToUpper(value)))
			}
		}
		const body = `{"id":"evt_1"}`
		if s.sign != nil {
			sentAt := func(shift time.Duration) string { return fmt.Sprint(time.Now().Add(shift).Unix()) }
			genuine("our own signature", first, body, s.sign(first, sentAt(0), body))
			for _, odd := range []string{"\xff" + body, "\ufeff" + body, strings.Replace(body, "1", "\xed\xa0\x80", 1)} {
				compare("odd body", first, odd, s.sign(first, sentAt(0), odd))
			}
			compare("signed empty body", first, "", s.sign(first, sentAt(0), ""))
			if s.timed {
				genuine("4 minutes old", first, body, s.sign(first, sentAt(-4*time.Minute), body))
				wrong("6 minutes old", first, body, s.sign(first, sentAt(-6*time.Minute), body))
				compare("of the future", first, body, s.sign(first, sentAt(6*time.Minute), body))
				for _, sent := range []string{"+" + sentAt(0), "0" + sentAt(0), sentAt(0) + ".5", sentAt(0) + "x", " " + sentAt(0), sentAt(0) + " ", "-" + sentAt(0), "NaN", "0x" + sentAt(0), "9" + sentAt(0), sentAt(0) + "e0"} {
					compare("odd time "+sent, first, body, s.sign(first, sent, body))
				}
			}
		}
		random := rand.New(rand.NewPCG(1, 2))
		lines := signedBy(t, sdks, s.sdk, first, body)
		before := accepted
		for range 300 {
			mutant := slices.Clone(lines)
			for range 1 + random.IntN(2) {
				mutant = mutateLine(random, mutant)
			}
			compare("changed", first, body, mutant)
		}
		t.Logf("%s: %d accepted by both (%d of them changed), %d refused by both, %d only by us", s.sdk, accepted, accepted-before, refused, stricter)
	}
}

// mutateLine makes a small change to the value of a header.
func mutateLine(random *rand.Rand, lines []string) []string {
	n := random.IntN(len(lines))
	name, value, _ := strings.Cut(lines[n], ": ")
	i := random.IntN(len(value) + 1)
	odd := []string{",", " ", "\t", "=", ", ", ";", "+", "0", "A", "v1=", "v1,", "%", "x", "==", "\u00e4", ",v1=00", " v1,AAAA", "\"", ".", "t=1,", "v0="}
	switch pick := odd[random.IntN(len(odd))]; random.IntN(8) {
	case 0, 1:
		value = value[:i] + pick + value[i:]
	case 2:
		value = value[:i] + pick + value[min(i+1, len(value)):]
	case 3:
		value += pick
	case 4:
		value = pick + value
	case 5:
		value = value[:i]
	case 6:
		value = value[:i] + strings.ToUpper(value[i:])
	default:
		value = value + pick + value
	}
	lines[n] = name + ": " + value
	return lines
}

// The notifications of Adyen's payments have a signature in each item.
func TestSDKOfAdyensItems(t *testing.T) {
	t.Parallel()
	sdks := startSDKs(t)
	item := func(text string) string {
		var signature map[string]string
		line := signedBy(t, sdks, "adyen item", hexSecrets[0], text)[0]
		_, value, _ := strings.Cut(line, ": ")
		signature = map[string]string{"hmacSignature": value}
		encoded, _ := json.Marshal(signature)
		return `{"NotificationRequestItem":` + strings.TrimSuffix(text, "}") + `,"additionalData":` + string(encoded) + `}}`
	}
	notification := func(items ...string) string {
		return `{"live":"false","notificationItems":[` + strings.Join(items, ",") + `]}`
	}
	const authorisation = `{"eventCode":"AUTHORISATION","success":"true","pspReference":"Q1","merchantAccountCode":"M","merchantReference":"order:1","amount":{"value":1130,"currency":"EUR"}}`
	const capture = `{"eventCode":"CAPTURE","success":"true","pspReference":"C1","originalReference":"Q1","merchantAccountCode":"M","merchantReference":"","amount":{"value":0,"currency":"EUR"}}`
	good := item(authorisation)
	server := serve(t, middleware.New(newLocker(t), "k", middleware.Rule{Verify: []middleware.Verify{{Scheme: "adyen", Secrets: []string{hexSecrets[1], hexSecrets[0]}}}})(http.HandlerFunc(ok)))
	for body, want := range map[string]bool{
		notification(good):                                                true,
		notification(good, item(capture)):                                 true,
		notification(strings.Replace(good, "order:1", "order:2", 1)):      false,
		notification(strings.Replace(good, `"true"`, `"false"`, 1)):       false,
		notification(good, strings.Replace(item(capture), "C1", "C2", 1)): false,
		notification(`{"NotificationRequestItem":` + authorisation + `}`): false,
		notification(): false,
		notification(strings.Replace(good, `"pspReference":"Q1"`, `"pspReference":"Q2"`, 1)):                     false,
		notification(strings.Replace(good, `1130`, `1131`, 1)):                                                   false,
		notification(strings.Replace(good, `"eventCode"`, `"eventcode"`, 1)):                                     false,
		notification(strings.Replace(good, `"pspReference":"Q1"`, `"pspReference":"Q2","pspreference":"Q1"`, 1)): false,
		strings.Replace(notification(good), `"notificationItems"`, `"notificationitems"`, 1):                     false,
		notification(strings.Replace(good, `"hmacSignature":"`, `"hmacSignature":"A`, 1)):                        false,
		notification(strings.Replace(good, `"hmacSignature"`, `"x"`, 1)):                                         false,
		`{}`: false,
		`[]`: false,
	} {
		byUs := statusOf(t, server.Listener.Addr().String(), "", "x", body, nil) == http.StatusOK
		bySDK := statusOf(t, sdks, "adyen", hexSecrets[1]+" "+hexSecrets[0], body, nil) == http.StatusOK
		if byUs != want || bySDK != want {
			t.Errorf("accepted by us: %v, by the SDK: %v, want %v: %s", byUs, bySDK, want, body)
		}
	}
}

func hmacOf(secret, text string) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(text))
	return h.Sum(nil)
}

func newLocker(t *testing.T) *redlock.Locker {
	t.Helper()
	locker, err := redlock.Open([]string{"memory://"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close() })
	return locker
}

func serve(t *testing.T, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

func ok(http.ResponseWriter, *http.Request) {}
