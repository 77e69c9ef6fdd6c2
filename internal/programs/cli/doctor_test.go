package cli

import (
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
)

// TestVerdict: the last line never says that locks can be taken if running processes forbid that.
func TestVerdict(t *testing.T) {
	for want, report := range map[string]doctor.Report{
		"1 needed: locks can be taken.\n":                                {Voting: 1, Findings: []doctor.Finding{{Check: doctor.Processes, Level: doctor.Warning}}},
		"NO LOCK CAN BE TAKEN.\n":                                        {Findings: []doctor.Finding{{Check: doctor.Processes, Level: doctor.Error}}},
		"1 needed: NO LOCK CAN BE TAKEN beside the running processes.\n": {Voting: 1, Findings: []doctor.Finding{{Check: doctor.Processes, Level: doctor.Error}}},
	} {
		report.Quorum, report.Masters = 1, make([]doctor.MasterReport, 1)
		var text strings.Builder
		if printReport(&text, report); !strings.HasSuffix(text.String(), want) {
			t.Errorf("%q, want %q at the end", text.String(), want)
		}
	}
}
