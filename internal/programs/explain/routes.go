package explain

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
)

// Routes prints, for each route of an application, what becomes of such a request to a site: METHOD /path in a line, as frameworks list them.
// Their parameters are taken to be 1.
func Routes(configuration []byte, site string, routes io.Reader, secrets Secrets, out io.Writer) error {
	site = strings.TrimSuffix(site, "/")
	first, err := (&Request{URL: site + "/"}).request()
	if err != nil {
		return err
	}
	servers, notes, err := load(configuration, first, secrets)
	if err != nil {
		return err
	}
	for _, note := range notes {
		fmt.Fprintf(out, "note      %s\n", note)
	}
	lines := bufio.NewScanner(routes)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 2 || !strings.HasPrefix(fields[1], "/") {
			return fmt.Errorf("%q: want a method and a path, such as POST /orders/{id}/pay", lines.Text())
		}
		for method := range strings.FieldsFuncSeq(fields[0], func(c rune) bool { return c == '|' || c == ',' }) {
			r, err := (&Request{URL: site + parameter.ReplaceAllString(fields[1], "1"), Method: method}).request()
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(out, "%-7s %-40s %s\n", method, fields[1], explain(servers, r).verdict()); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

// parameter finds a parameter of a route as frameworks write it: {id}, {id:int}, <int:id>, :id.
var parameter = regexp.MustCompile(`\{[^}/]*\}|<[^>/]*>|:[A-Za-z_]\w*`)

// verdict says what becomes of a request in a few words.
func (e *Explanation) verdict() string {
	if e.refusal != nil {
		return "refused " + e.refused()
	}
	var rules []string
	for i, rule := range e.rules {
		rules = append(rules, e.names[i]+": "+rule.Brief())
	}
	switch {
	case len(rules) > 0:
		return strings.Join(rules, "; ")
	case e.status >= http.StatusBadRequest:
		return fmt.Sprintf("refused %d", e.status)
	}
	return "no lock"
}
