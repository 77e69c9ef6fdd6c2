package fields

import "errors"

// payloadField is the field of a form in which GitHub and Slack send JSON.
const payloadField = "payload"

// InPayload finds the fields of the format payload in the JSON that is the payload of a form. They replace what the form has
// under their names.
func InPayload(raw []byte, fields []Field, found []Found) error {
	var at []int
	var inside []Field
	for i, field := range fields {
		if field.Format == payloadField {
			at, inside = append(at, i), append(inside, field)
		}
	}
	if len(at) == 0 {
		return nil
	}
	values := make([]Found, len(inside))
	value, err := payloadOf(raw)
	if err == nil {
		values, err = InJSON(AppendUnescaped(nil, value), inside)
	}
	if err != nil && !errors.Is(err, ErrMissing) {
		return err
	}
	for i := range at {
		found[at[i]] = values[i]
	}
	return nil
}

// payloadOf returns the payload, still with its escapes.
func payloadOf(raw []byte) (payload []byte, err error) {
	wanted, err := Parse(payloadField)
	if err != nil {
		return nil, err
	}
	err = ErrMissing
	var reader Name
	for name, value := range pairs(raw, '&') {
		reader.Set(name)
		if same, inside := reader.is(&wanted); !same && !inside {
			continue
		}
		if err == nil || string(name) != payloadField {
			return nil, ErrAmbiguous
		}
		payload, err = value, nil
	}
	return payload, err
}
