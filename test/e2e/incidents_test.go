package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// incident is what goes wrong, and what the product says of it to somebody on call who asks web1. In all texts {0} to {3} are the
// masters.
type incident struct {
	name    string
	options []string      // of the masters, on web1 and web2
	args    []string      // of the first master
	clock   bool          // whether it goes by a clock that can be wrong
	network bool          // whether it is reached over a network that can be made bad
	life    time.Duration // of its certificate; it has none if that is 0
	start   func(t *testing.T, s *scene)

	ill     string   // the master that is, as in "{0} hung"; empty for none
	command []string // that is asked: masters, unless there is another
	says    []string // in what it prints
	path    string   // of the page
	page    []string
	doctor  map[string][]string // by "check master", what a finding says and advises; nothing else may be found
	metric  string              // a series that is not 0
	zero    string              // one that is 0
	log     string              // in each line of a warning or an error that the log has since, of which there is one; none if it is empty
}

var incidents = []incident{
	{
		name:   "killed",
		start:  func(_ *testing.T, s *scene) { s.servers[0].Kill() },
		ill:    "{0} unreachable",
		says:   []string{"{0}: dial", "connection refused", "2 of 3 masters available, 2 needed: locks can be taken"},
		page:   []string{"1 of 3 masters is ill", "#a-master-is-away", "connection refused"},
		doctor: map[string][]string{"reachability {0}": {"connection refused", "Start the server"}},
		zero:   `master_up{master="{0}"}`,
		log:    `"master":"{0}"`,
	},
	{
		name:   "hung",
		start:  func(_ *testing.T, s *scene) { s.servers[0].Pause() },
		ill:    "{0} hung",
		says:   []string{"{0}: ", "2 of 3 masters available"},
		page:   []string{"1 of 3 masters is ill", "#a-master-is-away"},
		doctor: map[string][]string{"reachability {0}": {"does not answer within", ""}},
		zero:   `master_up{master="{0}"}`,
		log:    `"master":"{0}"`,
	},
	{
		name:    "restarted",
		options: []string{"restart_guard 61s"},
		start: func(t *testing.T, s *scene) {
			s.servers[0].Kill()
			s.servers[0].Restart()
			withLeastRights(t, s.servers[0])
		},
		ill:    "{0} restarted",
		says:   []string{"{0}: ", "it grants locks again by itself in"},
		page:   []string{"1 of 3 masters is ill", "#a-master-is-away", "UTC, in"},
		doctor: map[string][]string{"uptime {0}": {"", "Wait."}},
		zero:   `master_up{master="{0}"}`,
		log:    `"master":"{0}"`,
	},
	{
		name:   "full",
		start:  func(t *testing.T, s *scene) { s.command(t, "CONFIG", "SET", "maxmemory", "1") },
		ill:    "{0} refuses",
		says:   []string{"{0}: ", "OOM"},
		page:   []string{"1 of 3 masters is ill", "#a-master-is-away", "nearly full"},
		doctor: map[string][]string{"rights {0}": {"memory", "maxmemory"}},
		zero:   `master_up{master="{0}"}`,
		log:    `"master":"{0}"`,
	},
	{
		name:    "full disk",
		args:    []string{"--appendfsync", "everysec"},
		options: []string{"restart_guard 11s"},
		start:   func(_ *testing.T, s *scene) { s.servers[0].Fill() },
		ill:     "{0} refuses",
		says:    []string{"{0}: ", "it can't write its append-only file: free space on its disk"},
		page:    []string{"1 of 3 masters is ill", "#a-master-is-away", "free space on its disk"},
		doctor:  map[string][]string{"rights {0}": {"append-only file", "Free space on its disk"}},
		zero:    `master_up{master="{0}"}`,
		log:     `"master":"{0}"`,
	},
	{
		name: "wrong password",
		start: func(t *testing.T, s *scene) {
			s.command(t, "ACL", "SETUSER", "redlock", "resetpass", ">another")
			s.kick(t)
		},
		ill:    "{0} refuses",
		says:   []string{"{0}: ", "WRONGPASS"},
		page:   []string{"1 of 3 masters is ill", "#a-master-is-away", "WRONGPASS"},
		doctor: map[string][]string{"reachability {0}": {"password", "ACL GETUSER"}},
		zero:   `master_up{master="{0}"}`,
		log:    `"master":"{0}"`,
	},
	{
		name: "missing right",
		start: func(t *testing.T, s *scene) {
			s.command(t, "ACL", "SETUSER", "redlock", "-rpush")
			s.waits = append(s.waits, s.b.hold(t, s.web1.url+"/orders/1")) // the first lock shows it
		},
		ill:    "{0} refuses",
		says:   []string{"{0}: ", "grant this user the rights that docs/masters.md lists"},
		page:   []string{"1 of 3 masters is ill", "#a-master-is-away", "grant this user the rights"},
		doctor: map[string][]string{"rights {0}": {"+rpush", "ACL SETUSER redlock +rpush"}},
		zero:   `master_up{master="{0}"}`,
		log:    `"master":"{0}"`,
	},
	{
		name:   "wrong clock",
		clock:  true,
		start:  func(_ *testing.T, s *scene) { s.clock.Set(time.Minute, 0) },
		ill:    "{0} clock",
		says:   []string{"{0}: ", "clock"},
		page:   []string{"1 of 3 masters is ill", "#a-master-is-away", "clock"},
		doctor: map[string][]string{"clock {0}": {"1m", "NTP"}},
		zero:   `master_up{master="{0}"}`,
		log:    `"master":"{0}"`,
	},
	{
		name:    "far away",
		network: true,
		options: []string{"timeout 500ms", "restart_guard off"},
		start: func(_ *testing.T, s *scene) {
			s.network.Set(redistest.Weather{Delay: 1500 * time.Millisecond})
		},
		ill:    "{0} slow",
		says:   []string{"{0}: slow: ", "set the timeout to at least 1."},
		page:   []string{"1 of 3 masters is ill", "#a-slow-master", "set the timeout to at least 1."},
		doctor: map[string][]string{"latency {0}": {"no reply comes in time", "timeout"}},
		zero:   `master_up{master="{0}"}`,
		log:    `"master":"{0}"`,
	},
	{
		name:   "an eviction policy that was set at run time",
		start:  func(t *testing.T, s *scene) { s.command(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru") },
		says:   []string{"allkeys-lru", "! {0}: deletes locks when its memory is full", "maxmemory-policy noeviction"},
		page:   []string{`<span class="badge warn">allkeys-lru</span>`},
		doctor: map[string][]string{"eviction {0}": {"maxmemory-policy is allkeys-lru", "noeviction"}},
		metric: `master_evicts{master="{0}"}`,
		log:    `"master":"{0}"`,
	},
	{
		name:   "a certificate that ends in ten days",
		life:   10 * 24 * time.Hour,
		start:  func(*testing.T, *scene) {},
		says:   []string{"CERTIFICATE", "to 20", "! {0}: its certificate", "CONFIG SET tls-cert-file"},
		doctor: map[string][]string{"certificate {0}": {"ends on ", "CONFIG SET tls-cert-file"}},
		metric: `master_certificate_expiry_timestamp_seconds{master="{0}"}`,
	},
	{
		name: "a certificate of another authority",
		life: 90 * 24 * time.Hour,
		start: func(t *testing.T, s *scene) {
			certificate, key := redistest.NewAuthority(t).Issue("127.0.0.1")
			s.command(t, "CONFIG", "SET", "tls-cert-file", certificate, "tls-key-file", key)
			s.kick(t)
		},
		ill:    "{0} unreachable",
		says:   []string{"{0}: tls: ", "trust its certificate", "2 of 3 masters available"},
		page:   []string{"1 of 3 masters is ill", "#a-master-is-away", "trust its certificate"},
		doctor: map[string][]string{"reachability {0}": {"authority that is unknown", "trust_pool"}},
		zero:   `master_up{master="{0}"}`,
		log:    `"master":"{0}"`,
	},
	{
		name:   "another max_ttl in one process",
		start:  func(t *testing.T, s *scene) { s.third(t, s.urls[:3], "max_ttl 40s") },
		says:   []string{"! web3 has another max_ttl (40s)"},
		page:   []string{"processes disagree", "Web3 has another max_ttl (40s)", "#processes-that-disagree"},
		doctor: map[string][]string{"processes ": {"web3 has a max_ttl of 40s, and this configuration one of 10s", "restart_guard to 41s"}},
		metric: `disagreements{about="max_ttl"}`,
		log:    `"process":"web3"`,
	},
	{
		name: "other masters in one process",
		start: func(t *testing.T, s *scene) {
			eventually(t, "the masters know web1 and web2", func() bool {
				return len(askAdmin[console.Processes](t, s.web1, http.MethodGet, "/redlock/processes", http.StatusOK).Processes) == 2
			})
			web3 := s.third(t, s.urls[1:])
			eventually(t, "web3 names the others", func() bool {
				text, _, code := redlockCommand(t, "masters", "--address", web3.admin)
				return code == 2 && strings.Contains(text, "NO LOCK CAN BE TAKEN") && strings.Contains(text, "! web1 has other masters")
			})
		},
		says:   []string{"! web3 has other masters", "and gets no locks"},
		page:   []string{"processes disagree", "Web3 has other masters", "#processes-that-disagree"},
		doctor: map[string][]string{"processes ": {"web3 has masters beside which this configuration is refused", "one master at a time"}},
		metric: `disagreements{about="masters"}`,
		log:    `"process":"web3"`,
	},
	{
		name:    "a handler that hangs",
		start:   func(t *testing.T, s *scene) { s.waits = append(s.waits, s.b.hold(t, s.web2.url+"/orders/42/pay")) },
		command: []string{"inspect", "order:42"},
		says:    []string{"holder web2", "POST /orders/42/pay", "label pay"},
		path:    "?key=order:42",
		page:    []string{`<span class="holder">web2</span>`, "POST /orders/42/pay", "#a-key-stays-locked"},
		metric:  "oldest_hold_seconds",
	},
	{
		name: "a storm on one key",
		start: func(t *testing.T, s *scene) {
			urls := []string{s.web1.url + "/orders/zz"}
			for i := range 5 {
				urls = append(urls, fmt.Sprint(s.web1.url, "/orders/", i))
			}
			s.waits = append(s.waits, s.b.hold(t, urls...), sendAll(t, requests(slices.Repeat(urls[:1], 30))...))
		},
		command: []string{"locks", "--limit", "1"},
		says:    []string{"order:zz pay held", " 30 POST /orders/zz", "6 held, 30 waiting"},
		page:    []string{`<dd>30 calls</dd><dd class="of"><a class="key" href="?key=order%3azz">order:zz</a>`},
		metric:  `waiting{rule="pay"}`,
	},
}

// TestIncidents: each incident is named, with the process or the master and what to do, by the commands, the page, doctor, the metrics
// that the alerts are made of, and the log; and nothing else is.
func TestIncidents(t *testing.T) {
	needTime(t)
	t.Parallel()
	for _, i := range incidents {
		t.Run(i.name, func(t *testing.T) {
			t.Parallel()
			i.happens(t)
		})
	}
}

// linesAMinute is how many lines a process may log of an incident.
const linesAMinute = 10

func (i incident) happens(t *testing.T) {
	s, release := newScene(t, i)
	names := strings.NewReplacer("{0}", s.urls[0], "{1}", s.urls[1], "{2}", s.urls[2], "{3}", s.urls[3])
	before := len(s.web1.log.String())
	began := time.Now()
	i.start(t, s)

	eventually(t, "the masters are "+i.ill, func() bool { return s.ill(t) == names.Replace(i.ill) })
	says := func(what string, texts []string, ask func() string) {
		t.Helper()
		var text string
		defer func() {
			if t.Failed() {
				t.Logf("%s:\n%s", what, text)
			}
		}()
		eventually(t, fmt.Sprintf("%s says %q", what, texts), func() bool {
			text = ask()
			return !slices.ContainsFunc(texts, func(want string) bool { return !strings.Contains(text, names.Replace(want)) })
		})
	}
	command := i.command
	if command == nil {
		command = []string{"masters"}
	}
	var printed string
	says("the command "+command[0], i.says, func() string {
		text, _, _ := redlockCommand(t, append(command, "--address", s.web1.admin)...)
		printed = text
		return strings.Join(strings.Fields(text), " ")
	})
	t.Log(printed) // what somebody on call sees
	says("the page", i.page, func() string { return get(t, s.web1.admin+"/redlock/"+i.path).body })

	patience := "10s"
	if i.network {
		patience = "30s"
	}
	var report doctor.Report
	out, stderr, _ := redlockCommand(t, "doctor", "--json", "--patience", patience, "--adapter", "caddyfile", "--config", s.file)
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("doctor: %v\n%s%s", err, out, stderr)
	}
	found := make(map[string]bool)
	for _, f := range report.Findings {
		if f.Level == doctor.Note {
			continue
		}
		name := string(f.Check) + " " + f.Master
		found[name] = true
		for check, want := range i.doctor {
			if names.Replace(check) == name && strings.Contains(f.Text, want[0]) && strings.Contains(f.Advice, want[1]) {
				name = ""
			}
		}
		if name != "" {
			t.Errorf("doctor finds %+v, want %v", f, i.doctor)
		}
	}
	for check := range i.doctor {
		if !found[names.Replace(check)] {
			t.Errorf("doctor doesn't find %s: %s", check, out)
		}
	}

	series := names.Replace(i.metric + i.zero)
	eventually(t, series, func() bool {
		value, known := s.web1.scrape(t)[series]
		if i.zero != "" {
			return known && value == 0
		}
		return value+s.web2.scrape(t)[series] > 0
	})

	if i.log != "" {
		says("the log", []string{i.log}, func() string { return s.web1.log.String()[before:] })
	}
	lines := 0
	for line := range strings.Lines(s.web1.log.String()[before:]) {
		if strings.Contains(line, `"logger":"redlock`) || strings.Contains(line, `"logger":"http.handlers.redlock`) {
			lines++
		}
		warns := strings.Contains(line, `"level":"warn"`) || strings.Contains(line, `"level":"error"`)
		if warns && strings.Contains(line, "redlock") && (i.log == "" || !strings.Contains(line, names.Replace(i.log))) {
			t.Errorf("the log has %s", line)
		}
	}
	if most := linesAMinute * (1 + int(time.Since(began)/time.Minute)); lines > most {
		t.Errorf("%d lines, more than %d", lines, most)
	}
	release()
	for _, wait := range s.waits {
		for _, a := range wait() {
			requireStatus(t, a, http.StatusOK)
		}
	}
}
