// Command fakeplugin is a CNI plugin for tests, written against the specification
// alone. It gives out addresses of 192.0.2.0/24 by making a file for each in the
// configuration's "dir", and appends what it was called with to the file "log"
// there. With "fail" set to a command's name it fails that command; a file "fail"
// in the directory does the same for plugins that are set up already.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

type config struct {
	CNIVersion    string          `json:"cniVersion"`
	Dir           string          `json:"dir"`
	Fail          string          `json:"fail"`
	DNS           json.RawMessage `json:"dns"`
	RuntimeConfig json.RawMessage `json:"runtimeConfig"`
	Attachments   []struct {
		ContainerID string `json:"containerID"`
		IfName      string `json:"ifname"`
	} `json:"cni.dev/valid-attachments"`
}

func main() {
	command := os.Getenv("CNI_COMMAND")
	if command == "VERSION" {
		fmt.Println(`{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0","1.1.0"]}`)
		return
	}
	in, err := io.ReadAll(os.Stdin)
	if err != nil {
		fail(err.Error())
	}
	var c config
	if err := json.Unmarshal(in, &c); err != nil {
		fail(err.Error())
	}
	id := os.Getenv("CNI_CONTAINERID")
	line := fmt.Sprintf("%s %s netns=%q args=%q config=%s\n", command, id, os.Getenv("CNI_NETNS"), os.Getenv("CNI_ARGS"), c.RuntimeConfig)
	log, err := os.OpenFile(filepath.Join(c.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		fail(err.Error())
	}
	if _, err := io.WriteString(log, line); err != nil {
		fail(err.Error())
	}
	switch command {
	case "ADD":
		ip := take(c, id)
		if c.Fail == command {
			fail("told to fail, after taking " + ip)
		}
		dns := c.DNS
		if dns == nil {
			dns = json.RawMessage("{}")
		}
		fmt.Printf(`{"cniVersion":%q,"interfaces":[{"name":"eth0","sandbox":%q}],"ips":[{"address":"%s/24","interface":0,"version":"4"}],"dns":%s}`+"\n",
			c.CNIVersion, os.Getenv("CNI_NETNS"), ip, dns)
	case "GC":
		collect(c)
	case "STATUS":
		if on, err := os.ReadFile(filepath.Join(c.Dir, "fail")); err == nil && strings.TrimSpace(string(on)) == command {
			fail("the plugin is not ready")
		}
	case "DEL":
		if on, err := os.ReadFile(filepath.Join(c.Dir, "fail")); err == nil && strings.TrimSpace(string(on)) == command {
			fail("told to fail")
		}
		free(c, id)
	}
}

// take claims an address for the container, with a file named by it.
func take(c config, id string) string {
	for i := 2; i < 255; i++ {
		ip := fmt.Sprintf("192.0.2.%d", i)
		f, err := os.OpenFile(filepath.Join(c.Dir, ip), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if os.IsExist(err) {
			continue
		}
		if err == nil {
			_, err = io.WriteString(f, id)
		}
		if err != nil {
			fail(err.Error())
		}
		return ip
	}
	fail("no address left")
	return ""
}

// collect frees the addresses of all that are not attached.
func collect(c config) {
	attached := map[string]bool{}
	for _, a := range c.Attachments {
		attached[a.ContainerID] = true
	}
	files, _ := filepath.Glob(filepath.Join(c.Dir, "192.0.2.*"))
	for _, f := range files {
		if owner, err := os.ReadFile(f); err == nil && !attached[string(owner)] {
			os.Remove(f)
		}
	}
}

func free(c config, id string) {
	files, _ := filepath.Glob(filepath.Join(c.Dir, "192.0.2.*"))
	for _, f := range files {
		if owner, err := os.ReadFile(f); err == nil && string(owner) == id {
			os.Remove(f)
		}
	}
}

func fail(msg string) {
	out, _ := json.Marshal(map[string]any{"cniVersion": "1.0.0", "code": 100, "msg": msg})
	fmt.Println(string(out))
	os.Exit(1)
}
