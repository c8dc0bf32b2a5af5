package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The table of attacks in docs/security.md claims nothing that is not tested: each row names a test
// that exists, and each test of an attack (TestAttack…, or in a file *attack*_test.go) has a row.
func TestAttacksHaveTests(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(root + "/docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	named, wrong := attacks(root, string(page))
	for _, w := range wrong {
		t.Error("docs/security.md:", w)
	}
	attackTests := 0
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (path == root+"/bin" || path == root+"/out" || path == root+"/.git") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(d.Name(), "_test.go") {
			return nil
		}
		ofAttacks, _ := filepath.Match("*attack*_test.go", d.Name())
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range testFunc.FindAllSubmatch(source, -1) {
			if name := string(m[1]); ofAttacks || strings.HasPrefix(name, "TestAttack") && dir != "internal/rules" {
				attackTests++
				if !named[dir+" "+name] {
					t.Errorf("%s: %s has no row in docs/security.md", path, name)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if attackTests == 0 {
		t.Error("found no tests of attacks")
	}
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

// attacks returns the tests, as "directory Name", that the page's table names, and what is wrong
// with its rows.
func attacks(root, page string) (named map[string]bool, wrong []string) {
	named = map[string]bool{}
	_, table, found := strings.Cut(page, "\n## Attacks\n")
	if !found {
		return nil, []string{"there is no section Attacks"}
	}
	table, _, _ = strings.Cut(table, "\n## ")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "| ---") || strings.HasPrefix(line, "| attack |") {
			continue
		}
		rows++
		if len(cells) != 3 {
			wrong = append(wrong, fmt.Sprintf("a row has %d columns, want 3: %s", len(cells), line))
			continue
		}
		tests := regexp.MustCompile("`([^` ]+) ([^` ]+)`").FindAllStringSubmatch(cells[2], -1)
		if len(tests) == 0 {
			wrong = append(wrong, "a row names no test: "+cells[0])
		}
		for _, test := range tests {
			if !declares(filepath.Join(root, test[1]), test[2]) {
				wrong = append(wrong, fmt.Sprintf("there is no test %s in %s", test[2], test[1]))
			}
			named[test[1]+" "+test[2]] = true
		}
	}
	if rows == 0 {
		wrong = append(wrong, "the table of attacks is empty")
	}
	return named, wrong
}

// declares says whether a test file of the directory declares the function.
func declares(dir, name string) bool {
	files, _ := filepath.Glob(dir + "/*_test.go")
	for _, file := range files {
		source, _ := os.ReadFile(file)
		for _, m := range testFunc.FindAllSubmatch(source, -1) {
			if string(m[1]) == name {
				return true
			}
		}
	}
	return false
}

func TestAttacksFindsWhatIsWrong(t *testing.T) {
	const head = "\n## Attacks\n\n| attack | what stops it | tests |\n| --- | --- | --- |\n"
	for page, want := range map[string]string{
		"":   "no section",
		head: "empty",
		head + "| a | b | `internal/rules TestAttacksHaveTests` |\n": "",
		head + "| a | b | |\n":                                                  "names no test",
		head + "| a | b |\n":                                                    "2 columns",
		head + "| a | b | `internal/rules TestNothing` |\n":                     "no test TestNothing",
		head + "| a | b | `internal/rules TestAttacks` |\n":                     "no test TestAttacks in",
		head + "| a | b | `network TestAttacksHaveTests` |\n\n## More\n| a |\n": "no test TestAttacksHaveTests in network",
	} {
		_, wrong := attacks("../..", page)
		got := strings.Join(wrong, "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q", page, got, want)
		}
	}
}
