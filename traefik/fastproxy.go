package traefik

import (
	"os"
	"strings"
)

// fastProxy returns where experimental.fastProxy is switched on in Traefik's static configuration, as far as a plugin can see, or "".
// That proxy doesn't end its request to the upstream when the context ends. So after a lost lease, two requests could run under one lock.
func fastProxy(args, environment []string) string {
	files := []string{}
	for i, arg := range args {
		option := strings.ToLower(strings.TrimLeft(arg, "-"))
		if strings.HasPrefix(option, "experimental.fastproxy") {
			return "in the arguments"
		}
		if strings.HasPrefix(option, "configfile=") {
			files = append(files, arg[strings.Index(arg, "=")+1:])
		} else if option == "configfile" && i+1 < len(args) {
			files = append(files, args[i+1])
		}
	}
	for _, variable := range environment {
		if strings.HasPrefix(variable, "TRAEFIK_EXPERIMENTAL_FASTPROXY") {
			return "in the environment"
		}
		if strings.HasPrefix(variable, "TRAEFIK_CONFIGFILE=") {
			files = append(files, variable[strings.Index(variable, "=")+1:])
		}
	}
	if len(files) == 0 { // where Traefik looks
		for _, ending := range []string{"yml", "yaml", "toml"} {
			files = append(files, "/etc/traefik/traefik."+ending, "traefik."+ending)
		}
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && switchesOnFastProxy(string(text)) {
			return file
		}
	}
	return ""
}

// switchesOnFastProxy reports whether a file, in YAML or TOML, has experimental.fastProxy outside of a comment.
func switchesOnFastProxy(text string) bool {
	for _, line := range strings.Split(strings.ToLower(text), "\n") {
		setting := strings.Trim(line, " \t[\"'{")
		setting = strings.TrimPrefix(setting, "experimental.")
		if strings.HasPrefix(setting, "fastproxy") {
			return true
		}
	}
	return false
}
