package runtimetest

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestDocsHaveTheDifferences(t *testing.T) {
	const file = "../../docs/oci-conformance.md"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(data), "### Where the engines differ\n")
	table, _, _ = strings.Cut(table, "###")
	rows := 0
	for _, d := range Differences {
		if row := fmt.Sprintf("| %s | %s | %s |\n", d.What, d.Libcontainer, d.Own); !strings.Contains(table, row) {
			t.Errorf("%s lacks\n%s", file, row)
		}
		rows++
	}
	const heads = 2
	if got := strings.Count(table, "\n| ") - heads; got != rows {
		t.Errorf("%s has %d differences, the suite knows %d", file, got, rows)
	}
}
