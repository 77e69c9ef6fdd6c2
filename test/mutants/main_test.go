package main

import "testing"

// TestMutantsFit: each mutant is one of what the code is now, and has a test. make mutants tries them.
func TestMutantsFit(t *testing.T) {
	t.Chdir("../..")
	mutants, err := read(list)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		if len(m.edits) == 0 || len(m.tests) == 0 {
			t.Errorf("%s: it has no edit, or no test", m.name)
		}
	}
	if err := overlay(mutants, t.TempDir()); err != nil {
		t.Error(err)
	}
}
