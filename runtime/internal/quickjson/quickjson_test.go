package quickjson_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime/internal/quickjson"
)

// all has a field of every kind there is to read.
type all struct {
	Text    string            `json:"text"`
	Untaged bool              // by its own name
	Small   int8              `json:"small,omitempty"`
	Large   uint64            `json:"large"`
	Number  *int64            `json:"number"`
	Map     map[string]string `json:"map"`
	Maps    map[string]*all   `json:"maps"`
	List    []string          `json:"list"`
	Lists   [][]all           `json:"lists"`
	Inner   *all              `json:"inner"`
	hidden  string
	Left    string `json:"-"`
	// These are beyond the package.
	Bytes  []byte    `json:"bytes"`
	Time   time.Time `json:"time"`
	Any    any       `json:"any"`
	Float  float64   `json:"float"`
	Quoted struct {
		Number int `json:"number,string"`
	} `json:"quoted"`
	Embedding struct {
		named
	} `json:"embedding"`
	Named named            `json:"named"`
	Keys  map[named]string `json:"keys"`
}

// named reads itself.
type named string

func (n *named) UnmarshalText(b []byte) error {
	*n = named("<" + string(b) + ">")
	return nil
}

// texts are read as by encoding/json, or not at all.
var texts = map[string]struct {
	text string
	ours bool
}{
	"empty":              {`{}`, true},
	"everything":         {` { "text" : "a" , "small" : -128 , "large" : 18446744073709551615, "number":0, "list":["x","y",""], "map":{"k":"v"}, "maps":{"m":{"text":"b"},"n":null}, "lists":[[],[{"small":1}]], "inner":{"inner":{}}} ` + "\r\n\t", true},
	"null":               {`{"text":null,"number":null,"map":null,"list":null,"inner":null,"Untaged":null}`, true},
	"null as a whole":    {`null`, true},
	"empty list and map": {`{"list":[],"map":{},"lists":[[]]}`, true},
	"by its own name":    {`{"Untaged":true}`, true},
	"unknown":            {`{"other":{"a":[1,true,null,"x",{}],"b":-5}}`, true},
	"escapes":            {`{"text":"a\n\u00e9\"\\ü"}`, true},
	"left out":           {`{"-":"x","hidden":"y","Left":"z"}`, true},
	"other case":         {`{"TEXT":"a"}`, false},
	"key twice":          {`{"text":"a","text":"b"}`, false},
	"unknown key twice":  {`{"a":1,"a":2}`, false},
	"key twice in a map": {`{"map":{"a":"","a":""}}`, false},
	"wrong type":         {`{"text":1}`, false},
	"too large":          {`{"small":128}`, false},
	"negative":           {`{"large":-1}`, false},
	"fraction":           {`{"small":1.0}`, false},
	"exponent":           {`{"small":1e1}`, false},
	"leading zero":       {`{"small":01}`, false},
	"only a sign":        {`{"small":-}`, false},
	"cut off":            {`{"text":"a`, false},
	"no value":           {`{"text":}`, false},
	"comma at the end":   {`{"text":"a",}`, false},
	"comma in a list":    {`{"list":["a",]}`, false},
	"more text":          {`{} {}`, false},
	"no text":            {``, false},
	"control character":  {"{\"text\":\"a\nb\"}", false},
	"no UTF-8":           {"{\"text\":\"\xff\"}", false},
	"lone surrogate":     {`{"text":"\ud800"}`, true},
	"bytes":              {`{"bytes":"YQ=="}`, false},
	"time":               {`{"time":"2024-01-01T00:00:00Z"}`, false},
	"any":                {`{"any":1}`, false},
	"float":              {`{"float":1}`, false},
	"quoted number":      {`{"quoted":{"number":"1"}}`, false},
	"embedded":           {`{"embedding":{}}`, false},
	"reads itself":       {`{"named":"x"}`, false},
	"key reads itself":   {`{"keys":{"x":""}}`, false},
	"unknown fraction":   {`{"other":1.5}`, false},
}

func TestUnmarshal(t *testing.T) {
	for name, c := range texts {
		t.Run(name, func(t *testing.T) {
			var got, want all
			if ours := quickjson.Unmarshal([]byte(c.text), &got); ours != c.ours {
				t.Errorf("read: %v, want %v", ours, c.ours)
			}
			if err := json.Unmarshal([]byte(c.text), &want); c.ours && (err != nil || !reflect.DeepEqual(got, want)) {
				t.Errorf("got %+v, encoding/json: %+v, %v", got, want, err)
			}
		})
	}
	if quickjson.Unmarshal([]byte("{}"), all{}) || quickjson.Unmarshal([]byte("{}"), (*all)(nil)) {
		t.Error("read into what is no pointer")
	}
	_ = all{}.hidden
}

func FuzzUnmarshal(f *testing.F) {
	for _, c := range texts {
		f.Add([]byte(c.text))
	}
	configs, _ := filepath.Glob("../../../pod/ocispec/testdata/*.json")
	if len(configs) == 0 {
		f.Fatal("no configurations in pod/ocispec/testdata")
	}
	for _, name := range configs {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"ociVersion":"1.3.0","process":{"user":{"uid":0},"args":["a"],"cwd":"/"},"linux":{"namespaces":[{"type":"pid"}],"seccomp":{"defaultAction":"SCMP_ACT_ERRNO"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		same[all](t, data)
		same[specs.Spec](t, data)
	})
}

// same fails the test if what is read is not what encoding/json reads.
func same[T any](t *testing.T, data []byte) {
	var got, want T
	if !quickjson.Unmarshal(data, &got) {
		return
	}
	if err := json.Unmarshal(data, &want); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%q: got %+v, encoding/json: %+v, %v", data, got, want, err)
	}
}

func BenchmarkUnmarshal(b *testing.B) {
	data, err := json.Marshal(&specs.Spec{Version: specs.Version, Process: &specs.Process{Args: []string{"a"}, Cwd: "/"}})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		var s specs.Spec
		if !quickjson.Unmarshal(data, &s) {
			b.Fatal("not read")
		}
	}
}
